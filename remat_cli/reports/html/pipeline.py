"""The HTML report of a pipeline: jobs and memory of each rank over time, and what each rank recomputes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Status
from remat_cli.pipelines import Pipeline, PipelinePlanning, RankJob, Replay
from remat_cli.pipelines.reruns import rerun_ops
from remat_cli.prepare import Prepared
from remat_cli.reports.html.data import RankData, pipeline_script_data
from remat_cli.reports.html.document import TONES, HtmlDocument, table_of
from remat_cli.reports.safe_text import shorten
from remat_cli.reports.terminal.layout import Cell
from remat_cli.reports.terminal.pipeline import (
    figure_rows,
    pipeline_facts,
    replay_facts,
    replay_rows,
    stage_rows,
    usual_name,
    verdict_on,
)
from remat_cli.units import format_bytes, format_share, format_time

_SCRIPTS = ("format.js", "model.js", "view.js", "frame.js", "ranks.js")
_LONGEST_IN_TABLE = 36
_MOST_OPS = 3
# The size of the chart that replaces the drawn one without script.
_WIDTH, _ROW, _BETWEEN = 960, 14, 4


@dataclass(frozen=True)
class RanPipeline:
    """A pipeline as it ran.

    Attributes:
        pipeline: the pipeline.
        replay: the judge's measurement.
        budgets: [ranks] budget in bytes.
        graph: graph of one microbatch.
    """

    pipeline: Pipeline
    replay: Replay
    budgets: Sequence[int]
    graph: Graph

    @property
    def reruns(self) -> Mapping[RankJob, tuple[str, ...]]:
        """Ops that each job runs again."""
        return rerun_ops(self.pipeline)

    def data(self) -> str:
        """Return all ranks as JSON for a `<script>` element."""
        reruns = self.reruns
        ranks = []
        for rank, runs in enumerate(self.replay.ran):
            fixed = sum(
                chunk.fixed_bytes(self.pipeline.microbatches)
                for chunk in self.pipeline.chunks
                if self.pipeline.rank_of[chunk.index] == rank
            )
            again = [self._time(run.job, reruns.get(run.job, ())) for run in runs]
            memory = [(0, fixed), *self.replay.memory[rank]]
            ranks.append(RankData(self.budgets[rank], self.replay.peaks[rank], runs, again, memory))
        return pipeline_script_data(self.graph.time_unit, self.replay.makespan, ranks)

    def _time(self, job: RankJob, names: Sequence[str]) -> int:
        ops = self.pipeline.chunks[job.chunk].graph.op
        return sum(ops[name].time for name in names)

    def table(self) -> str:
        """Return the section that lists each rank, with what it recomputes."""
        unit, reruns = self.graph.time_unit, self.reruns
        rows: list[list[Cell]] = []
        for rank, runs in enumerate(self.replay.ran):
            times: Counter[str] = Counter()
            again: Counter[str] = Counter()
            for run in runs:
                ops = self.pipeline.chunks[run.job.chunk].graph.op
                for name in reruns.get(run.job, ()):
                    times[name] += ops[name].time
                    again[name] += 1
            most = [f"{shorten(name, _LONGEST_IN_TABLE)} ({again[name]}×)" for name, _ in times.most_common(_MOST_OPS)]
            more = [f"{len(times) - _MOST_OPS:,} more"] if len(times) > _MOST_OPS else []
            rows.append([
                str(rank),
                format_bytes(self.replay.peaks[rank]),
                format_bytes(self.budgets[rank]),
                self.replay.peak_jobs[rank].text,
                format_share(1 - self.replay.busy[rank] / max(1, self.replay.makespan)),
                f"{again.total():,}",
                format_time(times.total(), unit),
                ", ".join([*most, *more]),
            ])  # fmt: skip
        headers = ["rank", "peak", "budget", "at job", "idle", "extra runs", "extra time", "recomputes"]
        table = table_of(headers, rows, right=(1, 2, 4, 5, 6))
        return f'<section class="card" id="by-rank"><h2>Ranks</h2>{table}</section>'

    def still(self) -> str:
        """Return a picture of all ranks that needs no script."""
        height, scale = len(self.replay.ran) * (_ROW + _BETWEEN), _WIDTH / max(1, self.replay.makespan)
        shapes = []
        for rank, runs in enumerate(self.replay.ran):
            place = f'y="{rank * (_ROW + _BETWEEN)}" height="{_ROW}"'
            shapes.append(f'<rect class="idle" x="0" width="{_WIDTH}" {place}/>')
            shapes += [
                f'<rect class="{run.job.kind}" x="{run.start * scale:.1f}" '
                f'width="{max(0.5, (run.end - run.start) * scale - 0.3):.1f}" {place}/>'
                for run in runs
            ]
        return (
            f'<svg class="still" viewBox="0 0 {_WIDTH} {height}" role="img" '
            f'aria-label="Jobs of the ranks over time">{"".join(shapes)}</svg>'
        )


def planned_pipeline_page(planning: PipelinePlanning) -> bytes:
    """Return the HTML report of `remat plan --stages`, even without a plan."""
    ranks = None
    if planning.pipeline is not None and planning.replay is not None:
        ranks = RanPipeline(planning.pipeline, planning.replay, planning.budgets, planning.prepared.graph)
    headers = ["", f"{usual_name(planning)}, plain", "plan", ""]
    comparison = "" if ranks is None else table_of(headers, figure_rows(planning), right=(1, 2))
    stages = table_of(
        ["stage", "first op", "work", "resident", "received"],
        stage_rows(planning.chunks, planning.prepared.graph),
        right=(2, 3, 4),
    )
    section = f'<section class="card" id="stages"><h2>Stages</h2>{stages}</section>'
    tone = TONES[planning.status]
    return _page(planning.prepared, pipeline_facts(planning), verdict_on(planning), tone, comparison, ranks, section)


def pipeline_page(prepared: Prepared, pipeline: Pipeline, replay: Replay, budgets: Sequence[int]) -> bytes:
    """Return the HTML report of a pipeline file that was replayed."""
    ranks = RanPipeline(pipeline, replay, budgets, prepared.graph)
    comparison = table_of(["", "pipeline", ""], replay_rows(replay, prepared.graph), right=(1,))
    verdict, tone = "The pipeline runs as its file says.", TONES[Status.FEASIBLE]
    return _page(prepared, replay_facts(prepared, replay), verdict, tone, comparison, ranks, "")


def _page(
    prepared: Prepared,
    facts: Sequence[tuple[str, Cell]],
    verdict: str,
    tone: str,
    comparison: str,
    ranks: RanPipeline | None,
    section: str,
) -> bytes:
    return HtmlDocument(
        title=prepared.graph.name,
        facts=facts,
        verdict=verdict,
        tone=tone,
        advice={},
        comparison=comparison,
        charts="" if ranks is None else "ranks.html",
        still="" if ranks is None else ranks.still(),
        sections=("" if ranks is None else ranks.table(), section),
        notes=prepared.notes,
        data="null" if ranks is None else ranks.data(),
        scripts=() if ranks is None else _SCRIPTS,
    ).file_bytes()
