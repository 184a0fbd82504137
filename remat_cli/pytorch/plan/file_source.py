"""The schedule in a file as a source, for the graph that it was planned for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.simulate import simulate
from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.schedule_json import ScheduleFile, read_schedule
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.source import ScheduleSource


@dataclass(frozen=True)
class FileSource(ScheduleSource):
    """The schedule in a file, for the same graph.

    Attributes:
        path: path of the file.
        file: content of the file.
        fused: inductor's kernels will run the schedule.
        strict: see `ScheduleSource`.
    """

    is_given = True

    path: Path
    file: ScheduleFile
    fused: bool = False
    strict: bool = False

    @property
    def is_decomposed(self) -> bool:
        """See `ScheduleSource.is_decomposed`."""
        return self.fused and not self.file.cuts

    @property
    def budget_text(self) -> str:  # type: ignore[override]
        """The path of the file."""
        return str(self.path)

    @classmethod
    def at(cls, path: Path, *, fused: bool = False, strict: bool = False) -> FileSource:
        """Read the file.

        Args:
            path: path of the file.
            fused: inductor's kernels will run the schedule.
            strict: see `ScheduleSource`.

        Raises:
            ScheduleFileError: the file cannot be read, or has no plan.
            UsageError: the schedule is not for a PyTorch step, or is for other kernels.
        """
        file = read_schedule(path)
        if file.structure is None:
            raise UsageError(
                f"{path} does not say which graph it is for", hint="plan a PyTorch step: remat plan FILE.py:NAME ..."
            )
        planned_fused = (file.read_with or {}).get("fused") is True
        if planned_fused and not fused:
            raise UsageError(
                f"{path} was planned for the kernels of torch.compile (--fused)", hint="planned(..., fused=True)"
            )
        if fused and not planned_fused:
            raise UsageError(
                f"{path} was planned for eager's kernels", hint="plan with --fused, or leave fused=True out"
            )
        return cls(path, file, fused, strict)

    def planned(self, piece: Piece) -> tuple[Piece, GraphRecord]:
        """Return the schedule in the file, and the piece in the parts that the file names.

        Raises:
            GraphError: the schedule is for another graph; the message names the first different op.
            InvalidSchedule: the schedule breaks a rule.
        """
        try:
            piece = piece.in_parts(self.file.cuts)
        except UsageError as fault:
            raise GraphError(f"{self.path} is for another graph: {fault.message}", hint="plan it again") from None
        graph = self.graph(piece)
        check_structure(graph, self.file.structure or {}, str(self.path))
        # Whether a step holds does not depend on how fast the link is.
        link = Link(Fraction(1))
        peak = simulate(graph, self.file.schedule, link=link).peak_bytes
        # The graph here has no optimizer; the file's may have counted its state.
        state_bytes = max(0, int(self.file.figures.get("peak_bytes", peak)) - peak)
        graph = graph.edited(resident_bytes=graph.resident_bytes + state_bytes).checked()
        trace = simulate(graph, self.file.schedule, link=link)
        planned = GraphRecord.of(graph, self.file.schedule, trace, self.file.budget_bytes)
        # The graph here has no times.
        return piece, replace(planned, overhead=self.file.overhead or 0.0, cuts=self.file.cuts)


def check_structure(graph: Graph, structure: Mapping[str, str], where: str) -> None:
    """Check that a graph equals the planned graph.

    It must have the same ops on the same values, with the same shapes and constants.

    Args:
        graph: graph of the step to run.
        structure: signatures of the planned graph's ops by name.
        where: origin of the signatures, for messages.

    Raises:
        GraphError: the graph is another.
    """
    if (fault := structure_fault(graph, structure)) is not None:
        raise GraphError(
            f"{where} is for another graph: {fault}",
            hint="plan it again, with the sizes, the mode and the torch that it runs with",
        )


def structure_fault(graph: Graph, structure: Mapping[str, str]) -> str | None:
    """Return the first difference from the planned graph, or None.

    Args:
        graph: graph of the step to run.
        structure: signatures of the planned graph's ops by name.
    """
    for op in graph.ops:
        at = f" ({op.source})" if op.source else ""
        if op.name not in structure:
            return f"op {op.name!r}{at} was not in it"
        if structure[op.name] != op.signature:
            return f"op {op.name!r}{at} had other inputs, shapes or constants"
    missing = [name for name in structure if name not in graph.op]
    return f"op {missing[0]!r} does not run here" if missing else None
