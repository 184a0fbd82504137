"""The report of a pipeline: ranks over time with their memory, makespan, idle share, and the bound."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Status
from remat_cli.pipelines import Chunk, JobKind, PipelinePlanning, Replay
from remat_cli.planning.summary import Summary, graph_summary
from remat_cli.prepare import Prepared
from remat_cli.reports.safe_text import Report, clean
from remat_cli.reports.terminal.layout import Cell, columns, facts, section
from remat_cli.reports.terminal.plan import STATUS_STYLES, graph_title, notes_section
from remat_cli.units import format_bytes, format_share, format_time

_WIDTH = 52
_LEVELS = " ▁▂▃▄▅▆▇█"
_KINDS = {
    JobKind.FORWARD: ("forward", "cyan"),
    JobKind.BACKWARD: ("backward", "green"),
    JobKind.INPUTS: ("gradients of inputs", "green"),
    JobKind.WEIGHTS: ("gradients of weights", "yellow"),
}
_IDLE = "·"


def pipeline_facts(planning: PipelinePlanning) -> list[tuple[str, Cell]]:
    """Return labels and values on the graph and the pipeline that is asked for."""
    prepared, request = planning.prepared, planning.request
    shape = f"{request.stages} ranks, {request.microbatches} microbatches, {len(planning.chunks)} chunks"
    return [("graph", graph_title(prepared)), ("times", clean(prepared.costs)), ("pipeline", shape)]


def usual_name(planning: PipelinePlanning) -> str:
    """Return the name of the order that a plan is compared with."""
    return "1F1B" if planning.request.chunks == 1 else "GPipe"


def figure_rows(planning: PipelinePlanning) -> list[list[str]]:
    """Return the rows that compare a plan with the usual order without recomputation."""
    unit, usual, replay = planning.prepared.graph.time_unit, planning.usual, planning.replay
    assert replay is not None, "there is a plan"
    return [
        [
            "makespan",
            format_time(usual.makespan, unit),
            format_time(replay.makespan, unit),
            planning.family,
        ],
        ["idle", format_share(usual.idle_share), format_share(replay.idle_share), "share of all ranks' time"],
        ["recomputing", "", format_time(replay.recomputing, unit), "on all ranks together"],
        ["bound", "", format_time(planning.bound, unit), "no pipeline of these cuts ends sooner"],
        ["status", "", planning.status.value, ""],
    ]


def pipeline_report(planning: PipelinePlanning) -> Report:
    """Return the report of `remat plan --stages`."""
    prepared, replay = planning.prepared, planning.replay
    title = facts(pipeline_facts(planning))
    verdict = Text(verdict_on(planning), f"bold {STATUS_STYLES[planning.status]}")
    rows = stage_rows(planning.chunks, prepared.graph)
    stages = section("Stages", columns(["", "first op", "work", "resident", "received"], rows, right=(2, 3, 4)))
    if replay is None:
        return Report(title, verdict, stages, *notes_section(prepared.notes))
    figures = columns(["", f"{usual_name(planning)}, plain", "plan", ""], figure_rows(planning), right=(1, 2))
    return Report(
        title,
        verdict,
        figures,
        stages,
        _ranks(replay, planning.budgets, prepared.graph),
        *notes_section(prepared.notes),
    )


def verdict_on(planning: PipelinePlanning) -> str:
    """Return the result of a planning in one sentence."""
    refusal, unit = planning.refusal, planning.prepared.graph.time_unit
    if planning.replay is not None:
        begun = "Interrupted. " if planning.interrupted else ""
        return f"{begun}All ranks fit, and the step takes {format_time(planning.replay.makespan, unit)}."
    if refusal is None:
        return "No pipeline was found within these budgets; a larger budget, or other cuts, may have one."
    where = "at the end of a pass" if refusal.op is None else f"at op {clean(refusal.op)}"
    return (
        f"No pipeline fits: rank {refusal.rank} needs {format_bytes(refusal.needed_bytes)} {where} under every plan, "
        f"above its budget of {format_bytes(planning.budgets[refusal.rank])}."
    )


def stage_rows(chunks: Sequence[Chunk], graph: Graph) -> list[list[str]]:
    """Return a row for each chunk: first op, work, and memory that is always there."""
    modules = {op.name: op.module for op in graph.ops}
    return [
        [
            str(chunk.index),
            clean(chunk.first if modules[chunk.first] is None else f"{chunk.first} ({modules[chunk.first]})"),
            format_time(chunk.graph.total_time, graph.time_unit),
            format_bytes(chunk.resident_bytes),
            format_bytes(chunk.received_bytes),
        ]
        for chunk in chunks
    ]


def _ranks(replay: Replay, budgets: Sequence[int], graph: Graph) -> RenderableType:
    """Return a chart of all ranks: jobs over time, with memory as a share of the budget below."""
    rows: list[Sequence[RenderableType | str]] = []
    for rank, peak in enumerate(replay.peaks):
        rows.append([str(rank), _jobs(replay, rank), f"{format_bytes(peak)} of {format_bytes(budgets[rank])}"])
        rows.append(["", Text(_memory(replay, rank, budgets[rank]), "dim"), f"at {replay.peak_jobs[rank].text}"])
    runs = {run.job.kind for rank in replay.ran for run in rank}
    kinds = ", ".join(f"{kind} {name}" for kind, (name, _) in _KINDS.items() if kind in runs)
    heading = f"Ranks over {format_time(replay.makespan, graph.time_unit)}: {kinds}, {_IDLE} idle; below, memory"
    return section(heading, columns(["", "", "peak"], [list(row) for row in rows]))


def _jobs(replay: Replay, rank: int) -> Text:
    cells: list[tuple[str, str]] = [(_IDLE, "dim")] * _WIDTH
    for run in replay.ran[rank]:
        first, last = (time * _WIDTH // max(1, replay.makespan) for time in (run.start, run.end))
        for cell in range(first, max(last, min(first + 1, _WIDTH))):
            cells[cell] = (run.job.kind, _KINDS[run.job.kind][1])
    return Text.assemble(*cells)


def _memory(replay: Replay, rank: int, budget_bytes: int) -> str:
    levels = [0] * _WIDTH
    moments = replay.memory[rank]
    for (time, level), (following, _) in zip(moments, [*moments[1:], (replay.makespan, 0)], strict=True):
        first, last = (min(_WIDTH - 1, at * _WIDTH // max(1, replay.makespan)) for at in (time, following))
        for cell in range(first, last + 1):
            levels[cell] = max(levels[cell], level)
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[min(top, -(-level * top // max(1, budget_bytes)))] for level in levels)


def pipeline_summary(planning: PipelinePlanning) -> Summary:
    """Return the JSON values of a pipeline's planning; a missing figure is None."""
    return {
        "graph": graph_summary(planning.prepared),
        "status": str(planning.status),
        "cuts": list(planning.cuts.first_ops),
        "budgets_bytes": list(planning.budgets),
        "bound": planning.bound,
        "usual": replay_summary(planning.usual),
        "plan": None if planning.replay is None else replay_summary(planning.replay),
        "family": planning.family or None,
        "reason": "" if planning.replay is not None else verdict_on(planning),
        "notes": list(planning.prepared.notes),
    }


def replay_summary(replay: Replay) -> Summary:
    """Return the JSON values of a replay."""
    return {
        "makespan": replay.makespan,
        "idle_share": replay.idle_share,
        "recomputing": replay.recomputing,
        "peaks_bytes": list(replay.peaks),
        "orders": [[run.job.text for run in rank] for rank in replay.ran],
    }


def replay_facts(prepared: Prepared, replay: Replay) -> list[tuple[str, Cell]]:
    """Return labels and values on the graph and the pipeline of a file."""
    return [("graph", graph_title(prepared)), ("pipeline", f"{len(replay.ran)} ranks")]


def replay_rows(replay: Replay, graph: Graph) -> list[list[str]]:
    """Return the rows with the figures of a replayed pipeline."""
    return [
        ["makespan", format_time(replay.makespan, graph.time_unit), ""],
        ["idle", format_share(replay.idle_share), "share of all ranks' time"],
        ["recomputing", format_time(replay.recomputing, graph.time_unit), "on all ranks together"],
    ]


def verified_report(prepared: Prepared, replay: Replay, budgets: Sequence[int]) -> Report:
    """Return the report of `remat verify` on a pipeline file."""
    verdict = Text("The pipeline runs as its file says.", f"bold {STATUS_STYLES[Status.OPTIMAL]}")
    figures = columns(["", "pipeline", ""], replay_rows(replay, prepared.graph), right=(1,))
    return Report(facts(replay_facts(prepared, replay)), verdict, figures, _ranks(replay, budgets, prepared.graph))
