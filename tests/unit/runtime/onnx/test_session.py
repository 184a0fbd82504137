"""The options that make onnxruntime follow a file, and what it does without them."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import remat_cli
from remat_cli import session_options
from tests.unit.formats.onnx.models import Model, float_input, node, weight
from tests.unit.runtime.onnx.rewriting import KERNEL_TIME, rewritten_model

# Have glibc keep blocks of less than 32 MiB in its heap, as it does by itself once a block of that size was freed. Then
# tell how many of the next blocks have pages of their own, and how many bytes went back when these were freed.
FREED_MEMORY = """
import ctypes
libc = ctypes.CDLL(None)
assert libc.mallopt(-3, 32 * 2**20)  # M_MMAP_THRESHOLD
{call}
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))

class Mallinfo(ctypes.Structure):
    _fields_ = [("field_%d" % i, ctypes.c_int) for i in range(10)]

libc.mallinfo.restype = Mallinfo

def with_own_pages():
    return libc.mallinfo().field_3  # hblks: blocks that are mapped

own = -with_own_pages()
blocks = [libc.malloc(2**20) for _ in range(64)]
own += with_own_pages()
for block in blocks:
    ctypes.memset(block, 1, 2**20)
before = resident()
for block in blocks:
    libc.free(block)
print(own, (before - resident()) * 2**10)
"""

MODEL = Model(
    [
        node("MatMul", ["x", "x"], ["a"], "first"),
        node("Sin", ["a"], ["b"], "second"),
        node("MatMul", ["b", "x"], ["c"], "third"),
        node("Add", ["c", "a"], ["y"], "last"),
    ],
    inputs=[float_input("x", 4, 4)],
)
COMPUTES = ["first", "second", "third", "first", "last"]


def runs(
    folder: Path, options: onnxruntime.SessionOptions, model: Model = MODEL, computes: Sequence[str] = COMPUTES
) -> list[str]:
    """The types of the nodes that onnxruntime runs of the rewritten model."""
    content = rewritten_model(folder, model, computes).proto.SerializeToString()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.ones((4, 4), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    return [one["args"]["op_name"] for one in events if one.get("cat") == "Node" and one["name"].endswith(KERNEL_TIME)]


def test_every_repeat_runs_with_them(tmp_path: Path) -> None:
    assert runs(tmp_path, session_options()) == ["MatMul", "Sin", "MatMul", "MatMul", "Add"]


def test_repeats_are_merged_without_them(tmp_path: Path) -> None:
    assert runs(tmp_path, onnxruntime.SessionOptions()).count("MatMul") < 3


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
@pytest.mark.parametrize(
    ("call", "pages_of_their_own"), [("", 0), ("from remat_cli import session_options; session_options()", 64)]
)
def test_freed_memory_goes_back_with_them(call: str, pages_of_their_own: int) -> None:
    code = FREED_MEMORY.format(call=call)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own, given_back = map(int, ended.stdout.split())
    assert own == pages_of_their_own
    assert given_back >= 2**20 * pages_of_their_own * 0.9


def test_a_dequantized_tensor_is_made_once(tmp_path: Path) -> None:
    model = Model(
        [
            node("QuantizeLinear", ["x", "scale"], ["q"]),
            node("DequantizeLinear", ["q", "scale"], ["d"]),
            node("Sin", ["d"], ["a"]),
            node("Cos", ["d"], ["b"]),
            node("Add", ["a", "b"], ["y"]),
        ],
        inputs=[float_input("x", 4, 4)],
        stored=[weight("scale")],
    )
    computes = [one.name for one in model.read(tmp_path).graph.ops]
    made = {}
    for said in ("0", "1"):
        options = session_options()
        if said == "0":
            options.add_session_config_entry("session.disable_quant_qdq", said)
        made[said] = runs(tmp_path, options, model, computes).count("DequantizeLinear")
    assert made == {"0": 2, "1": 1}


def test_the_package_exports_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sesion_options'"):
        _ = remat_cli.sesion_options
