"""The child process that runs one model in onnxruntime.

It hashes the outputs, and records memory or order.

`python -m remat_cli.runtime.onnx.measured_process REQUEST RESULT`; both are JSON files (see `execution`). In a process
of its own nothing else is in memory, and a crash of a kernel does not end the caller.

Resident memory is measured, as Linux counts it. The first run is not measured: it loads the weights, and lets
onnxruntime allocate memory that it keeps. The least peak of later runs counts: other runs add some hundred KiB of pages
at the edges of the heap.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from math import isfinite, prod
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any
from zlib import crc32

import numpy as np

from remat_cli.runtime.onnx.session import import_onnxruntime, session_options

# From linux/prctl.h: no huge pages, which count 2 MiB where one byte is used.
_PR_SET_THP_DISABLE = 41
_KIB = 1024
_RUNS_TO_SETTLE = 3
_LONGEST_TIMING_NS = 2 * 10**9
# The first measured run of a process took up to 600 KiB more than those that followed.
_LEAST_RUNS = 2
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
# Types of outputs to compare.
_NUMBERS = frozenset(f"tensor({name})" for name in ("float", "double", "float16", "bool", *_INTEGERS))
# Types of outputs that become objects of Python.
_TENSOR = rf"tensor\((?:float|double|float16|bool|string|{'|'.join(_INTEGERS)})\)"
_OBJECTS = re.compile(rf"{_TENSOR}|seq\({_TENSOR}\)|(?:seq\()?map\((?:string|int64),{_TENSOR}\)\)?")
# Words of a random text, if it is not a single one.
_WORDS = 6


def main(request: Path, result: Path) -> None:
    """Carry out the request in a file, and write its result to another."""
    asked = json.loads(request.read_text(encoding="utf-8"))
    result.write_text(json.dumps(_answer(asked)), encoding="utf-8")


def _answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    try:
        settle()
        return run(asked)
    except MemoryError:
        return {"error": "out of memory"}
    except Exception as error:  # the message of any exception in onnxruntime goes to the user
        return {"error": " ".join(str(error).split()) or type(error).__name__}


def settle() -> None:
    """Make memory countable.

    The process uses one processor, whose count of pages lags least, and no huge pages.
    """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


def run(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model, and record its peak, or its order with a profile.

    Args:
        asked: `model`, a path; `weights_folder`, for its external data; `dims`, sizes of symbols; `seed`; `inputs` and
            `random_weights`, as lists of name, type and shape; `words`, of random text; `files`, files of given inputs,
            by name; `filled`, the number that fills an input, by name; `profile_prefix`, a path or None; `runs`, number
            of runs with a profile; `measured_runs`, largest number of runs for the peak; `timed_runs`, largest number
            of runs for the time; `as_it_comes`, whether to use onnxruntime's own options; `outputs_file`, a path to
            which outputs of numbers are written as `output0`, `output1` and so on, or None.

    Returns:
        `version` of onnxruntime; `outputs` by name; `peak_bytes` in addition to the memory before the run, and
            `time_ns` of a run; or `order`, and `times_ns` of each run of each node.
    """
    runtime = import_onnxruntime()
    runtime.set_default_logger_severity(4)
    session = _session(runtime, asked)
    inputs = {name: _input(name, dtype, dims, asked) for name, dtype, dims in asked["inputs"]}
    if any(dtype == "string" for _, dtype, _ in asked["inputs"]):  # onnxruntime makes no values of it
        run_once = partial(session.run, None, inputs)
    else:
        feeds = {name: runtime.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        run_once = partial(session.run_with_ort_values, None, feeds)
    said: dict[str, Any] = {"version": runtime.__version__}
    if asked["profile_prefix"] is not None:
        for _ in range(asked["runs"]):
            run_once()
        nodes = _nodes_run(session.end_profiling())
        times: dict[str, list[int]] = {}
        for name, time_ns in nodes:
            times.setdefault(name, []).append(time_ns)
        return said | {"order": [name for name, _ in nodes], "times_ns": times}
    if asked["as_it_comes"]:
        return said | _growth(run_once) | {"time_ns": _time_ns(run_once, asked["timed_runs"])}
    run_once()
    outputs, peak_bytes = _measured(run_once, asked["measured_runs"])
    if asked["outputs_file"] is not None:
        numbers = {f"output{place}": value.numpy() for place, value in enumerate(outputs) if _has_numbers(value)}
        np.savez(asked["outputs_file"], **numbers)
    said |= {"peak_bytes": peak_bytes, "outputs": _digests(session, inputs, outputs)}
    return said | {"time_ns": _time_ns(run_once, asked["timed_runs"])}


def _session(runtime: Any, asked: Mapping[str, Any]) -> Any:
    options = runtime.SessionOptions() if asked["as_it_comes"] else session_options()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", asked["weights_folder"])
    for name, size in asked["dims"].items():
        options.add_free_dimension_override_by_name(name, size)
    if asked["profile_prefix"] is not None:
        options.enable_profiling, options.profile_file_prefix = True, asked["profile_prefix"]
    weights = {
        name: runtime.OrtValue.ortvalue_from_numpy(random_weight(name, dtype, dims, asked["seed"]))
        for name, dtype, dims in asked["random_weights"]
    }
    options.add_external_initializers(list(weights), list(weights.values()))
    return runtime.InferenceSession(Path(asked["model"]).read_bytes(), options, providers=["CPUExecutionProvider"])


def _measured(run_once: Callable[[], Sequence[Any]], runs: int) -> tuple[Sequence[Any], int]:
    """Return outputs, and the least peak of some runs.

    Slow models run twice.
    """
    peaks: list[int] = []
    outputs: Sequence[Any] = ()
    started = perf_counter_ns()
    while len(peaks) < runs and (len(peaks) < _LEAST_RUNS or perf_counter_ns() - started < _LONGEST_TIMING_NS):
        outputs = ()  # earlier outputs are freed before the next run begins
        before = _start_of_measurement()
        outputs = run_once()
        peaks.append(_status_bytes("VmHWM") - before)
    return outputs, min(peaks)


def _growth(run_once: Callable[[], object]) -> dict[str, int]:
    """Return the growth of the process's memory through runs.

    The first run fills the arena, the second allocates a block for most tensors; both are kept. Weights that are read
    from their files only now are not counted.
    """
    before, mapped = _start_of_measurement(), _status_bytes("RssFile")
    for _ in range(_RUNS_TO_SETTLE):
        run_once()
    read = _status_bytes("RssFile") - mapped
    return {"peak_bytes": _status_bytes("VmHWM") - before - read}


def _time_ns(run_once: Callable[[], object], runs: int) -> int | None:
    """Return the median time of some runs; None without runs.

    Slow models run less often.
    """
    times: list[int] = []
    while len(times) < runs and sum(times) < _LONGEST_TIMING_NS:
        start = perf_counter_ns()
        run_once()
        times.append(perf_counter_ns() - start)
    return int(median(times)) if times else None


def random_weight(name: str, dtype: str, dims: Sequence[int], seed: int) -> np.ndarray[Any, Any]:
    """Return random weights for which values neither vanish nor explode.

    Vectors are positive, as variances are.
    """
    source = np.random.default_rng((seed, crc32(name.encode())))
    if not np.issubdtype(np.dtype(dtype), np.floating):
        return source.integers(0, 2, dims).astype(dtype)
    if len(dims) < 2:
        return source.uniform(0.5, 1.5, dims).astype(dtype)
    fan_in = max(1, prod(dims) // max(1, dims[0]))
    return (source.standard_normal(dims, dtype=np.float32) / np.float32(fan_in**0.5)).astype(dtype)


def _input(name: str, dtype: str, dims: Sequence[int], asked: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    if name in asked["files"]:
        fed: np.ndarray[Any, Any] = np.load(asked["files"][name])
        return fed
    if name in asked["filled"]:
        return np.full(dims, asked["filled"][name], dtype)
    return _random_input(name, dtype, dims, asked["seed"], asked["words"])


def _random_input(name: str, dtype: str, dims: Sequence[int], seed: int, words: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return random numbers that any network accepts.

    Integers are 0 or 1, as they may be indices of a table; text is of the model's words.
    """
    source = np.random.default_rng((seed, crc32(name.encode())))
    if dtype == "string":
        texts = [" ".join(source.choice(words, source.choice([1, _WORDS]))) for _ in range(prod(dims))]
        return np.array(texts, dtype=str).reshape(dims)
    if np.issubdtype(np.dtype(dtype), np.floating):
        return source.standard_normal(dims, dtype=np.float32).astype(dtype)
    return source.integers(0, 2, dims).astype(dtype)


def _start_of_measurement() -> int:
    """Trim the heap, reset the peak, and return the resident bytes."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status_bytes("VmRSS")


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * _KIB
    raise OSError(f"/proc/self/status does not tell {key}")


def _nodes_run(profile: str) -> list[tuple[str, int]]:
    """Return names and nanoseconds of nodes in executed order.

    Nodes in bodies are included.
    """
    suffix = "_kernel_time"
    events: Iterable[Mapping[str, Any]] = json.loads(Path(profile).read_text(encoding="utf-8"))
    nodes = [(event["name"], 1000 * event["dur"]) for event in events if event.get("cat") == "Node"]
    return [(name.removesuffix(suffix), time_ns) for name, time_ns in nodes if name.endswith(suffix)]


def _digests(session: Any, inputs: Mapping[str, Any], outputs: Sequence[Any]) -> dict[str, dict[str, Any] | None]:
    """Return a digest of each output by name; None if Python cannot read its type.

    Text, sequences and maps are read in a further run, as objects of Python.
    """
    digests: dict[str, dict[str, Any] | None] = {}
    for declared, value in zip(session.get_outputs(), outputs, strict=True):
        if _has_numbers(value):
            digests[declared.name] = _digest(value.numpy())
        elif _OBJECTS.fullmatch(declared.type):
            digests[declared.name] = _digest(*session.run([declared.name], inputs))
        else:
            digests[declared.name] = None
    return digests


def _has_numbers(value: Any) -> bool:
    is_ort_value = hasattr(value, "is_tensor")
    return bool(is_ort_value and value.is_tensor() and value.data_type() in _NUMBERS)


def _digest(value: Any) -> dict[str, Any]:
    """Return the SHA-256 of a value with its types and shapes, and whether all its numbers are finite."""
    found, is_finite = sha256(), True
    for part in _flat(value):
        if isinstance(part, np.ndarray) and part.dtype.kind != "O":
            found.update(repr((part.dtype.str, part.shape)).encode() + part.tobytes())
            is_finite &= part.dtype.kind in "US" or bool(np.isfinite(part).all())
        else:
            found.update(repr(part).encode())
            is_finite &= not isinstance(part, float) or isfinite(part)
    return {"sha256": found.hexdigest(), "finite": is_finite}


def _flat(value: Any) -> Iterator[Any]:
    """Yield the arrays, numbers and texts in sequences and maps."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        yield value.shape
        yield from value.ravel().tolist()
    elif isinstance(value, list):
        yield len(value)
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        yield len(value)
        for key in sorted(value):
            yield key
            yield from _flat(value[key])
    else:
        yield value


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
