"""What each kernel of onnxruntime's CPU provider takes for itself: measured, beside what the rules say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def
from rich.console import Console
from rich.table import Table

from remat_cli.units import format_share
from tests.bench.kernel_cases import WITHOUT_CASE, kernel_cases
from tests.unit.runtime.onnx.measuring import measured
from tests.unit.runtime.onnx.one_op import Case, Predicted, predicted

MIB = 2**20
# Pages that the process still holds from before, which the next tensors fill, make the figures smaller than they are;
# more than this, and more than a share of the op's tensors, is shown as a difference.
NOISE_BYTES, NOISE_SHARE = MIB // 4, 0.01


@dataclass(frozen=True)
class Kernel:
    """One case that was run.

    Attributes:
        case: the op.
        tensors_bytes: its inputs and outputs that are no weights.
        own_bytes: what its kernel takes beside, by the rules.
        measured_bytes: what it took.
    """

    case: Case
    tensors_bytes: int
    own_bytes: int
    measured_bytes: int

    @property
    def is_known(self) -> bool:
        """Whether the rules say what was measured."""
        off = abs(self.measured_bytes - self.own_bytes)
        return off <= max(NOISE_BYTES, NOISE_SHARE * self.tensors_bytes)


def op_types() -> set[str]:
    """The op types of the CPU provider, those of onnxruntime's own with their domain in front."""
    kernels = (one for one in get_all_opkernel_def() if one.provider == "CPUExecutionProvider")
    return {".".join(filter(None, (one.domain, one.op_name))) for one in kernels if one.domain != "ai.onnx.ml"}


def op_type(case: Case) -> str:
    """The op type of a case, as `op_types` names it."""
    return ".".join(filter(None, (case.attributes.get("domain", ""), case.op)))


def result_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Run a case, and return the shapes of its results: some depend on data, some onnx does not know."""
    model, options = case.model(), onnxruntime.SessionOptions()
    options.log_severity_level = 4
    names = ["y", *(f"y{number}" for number in range(1, case.outputs))]
    del model.graph.output[:]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kind, source = helper.tensor_dtype_to_np_dtype(case.element), np.random.default_rng(0)
    drawn = source.standard_normal(case.h) if np.issubdtype(kind, np.floating) else source.integers(0, 2, case.h)
    results = session.run(None, {"x": drawn.astype(kind)})
    return {name: result.shape for name, result in zip(names, results, strict=True)}


def run_kernels(cases: Sequence[Case]) -> Iterator[Kernel | tuple[Case, str]]:
    """Run each case; yields what came of it, or why it could not be run."""
    with TemporaryDirectory() as folder:
        models: list[tuple[Case, Predicted | str]] = []
        for number, case in enumerate(cases):
            try:
                models.append((case, predicted(case, Path(folder), str(number), result_shapes(case))))
            except Exception as error:  # whatever onnxruntime raises stands in the table
                models.append((case, " ".join(str(error).split())[:150]))
        requests = [model.request for _, model in models if isinstance(model, Predicted)]
        answers = iter(measured(requests, Path(folder)))
        for case, model in models:
            if isinstance(model, str):
                yield case, model
                continue
            answer = next(answers)
            if "error" in answer:
                yield case, answer["error"]
                continue
            ops = [one for one in model.graph.ops if one.name == "op" or one.name.startswith("op/")]
            own = max(one.workspace_bytes for one in ops)
            touched = {name for one in ops for name in (*one.inputs, *one.outputs)}
            yield Kernel(
                case=case,
                tensors_bytes=sum(model.graph.tensors[name].bytes for name in touched),
                own_bytes=own,
                measured_bytes=max(0, answer["peak_bytes"] - model.peak_bytes + own),
            )


def kernels(console: Console) -> None:
    """What each kernel takes for itself, at a medium size."""
    table = Table(title="Workspace of kernels of onnxruntime, in MiB", title_justify="left")
    for column in ("op", "input", "attributes", "its tensors", "by the rules", "measured", "of its tensors", ""):
        table.add_column(column, justify="left" if column in ("op", "input", "attributes", "") else "right")
    cases = kernel_cases()
    for found in run_kernels(cases):
        if isinstance(found, Kernel):
            table.add_row(
                *_described(found.case),
                *(f"{size / MIB:.2f}" for size in (found.tensors_bytes, found.own_bytes, found.measured_bytes)),
                format_share(found.measured_bytes / max(1, found.tensors_bytes)),
                "" if found.is_known else "not known",
            )
        else:
            case, reason = found
            table.add_row(*_described(case), "", "", "", "", reason)
    console.print(table)
    for reason, names in without_case().items():
        console.print(f"No case, {reason}: {', '.join(names)}", markup=False)


def without_case() -> Mapping[str, list[str]]:
    """Op types without a case, by reason; those that are not listed with one have none."""
    left = op_types() - set(map(op_type, kernel_cases()))
    reasons = {reason: sorted(left & set(names.split())) for reason, names in WITHOUT_CASE.items()}
    rest = left.difference(*reasons.values())
    return reasons | ({"no reason": sorted(rest)} if rest else {})


def _described(case: Case) -> tuple[str, str, str]:
    told = ", ".join(f"{name} {value}" for name, value in case.attributes.items() if name != "domain")
    return op_type(case), " x ".join(map(str, case.h)), told


if __name__ == "__main__":
    kernels(Console(width=200))
