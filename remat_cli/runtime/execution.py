"""Execution of plans in their model's runtime: onnxruntime or torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_cli.config import GraphOptions
from remat_cli.core.graph import Graph
from remat_cli.core.link import Link
from remat_cli.core.problem import Observer
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.errors import UsageError
from remat_cli.formats.model_config import names_step
from remat_cli.prepare import Prepared, prepare
from remat_cli.pytorch.capture import check_installed
from remat_cli.settings import Setting

if TYPE_CHECKING:
    from remat_cli.pytorch.run.execution import StepExecution
    from remat_cli.runtime.onnx.execution import InBothSessions, ModelExecution


def check_can_execute(path: Path, options: GraphOptions, schedule: Schedule) -> None:
    """Check that a plan can be executed on this machine.

    Args:
        path: file or function of the model or step.
        options: options of reading the graph, with the mode.
        schedule: the schedule to execute.

    Raises:
        UsageError: the plan cannot be executed; the message has the reason and a remedy.
    """
    if options.ranks is not None:
        raise UsageError(
            (Setting("ranks", options.ranks), ": a plan for sharded parameters is simulated; nothing here runs it yet"),
            hint="verify it without --execute; or plan without ranks",
        )
    if names_step(path):
        check_installed()
        return
    from remat_cli.runtime.onnx.apply import check_can_apply
    from remat_cli.runtime.onnx.execution import check_can_measure

    check_can_apply(path, options, schedule)
    check_can_measure()


def check_is_predicted(prepared: Prepared) -> None:
    """Check that a run can take the predicted memory.

    Raises:
        UsageError: it is known to take more.
    """
    if prepared.understated is not None:
        why, remedy = prepared.understated
        raise UsageError(f"{prepared.graph.name} cannot run as predicted: {why}", hint=remedy)


def execute_as_it_is(
    path: Path,
    prepared: Prepared,
    *,
    fed: Mapping[str, Any] | None = None,
    seed: int = 0,
    time_limit: float = 600,
    observe: Observer | None = None,
) -> InBothSessions | StepExecution:
    """Run a model or step without a plan.

    A model runs in onnxruntime's two sessions, a step by its plain schedule. Arguments are as for `execute_plan`.
    """
    schedule = plain_run(prepared.graph)
    options = replace(prepared.options, mode=prepared.mode)
    check_can_execute(path, options, schedule)
    check_is_predicted(prepared)
    if names_step(path):
        _check_draws(path, fed)
        step = execute_plan(path, options, prepared.graph, schedule, link=prepared.link, seed=seed, observe=observe)
        assert step.runtime == "torch"
        return step
    from remat_cli.runtime.onnx.apply import read_for
    from remat_cli.runtime.onnx.execution import in_both_sessions

    model = read_for(path, options, keep_data=False)
    return in_both_sessions(
        path, model, prepared.graph, schedule, fed=fed, seed=seed, time_limit=time_limit, observe=observe
    )


def _check_draws(path: Path, fed: Mapping[str, Any] | None) -> None:
    if fed:
        raise UsageError(
            f"{path} makes its inputs itself, and takes none", hint="leave --input out, or change the function"
        )


def execute_plan(
    path: Path,
    options: GraphOptions,
    graph: Graph,
    schedule: Schedule,
    *,
    link: Link | None = None,
    budget_bytes: int | None = None,
    fed: Mapping[str, Any] | None = None,
    seed: int = 0,
    time_limit: float = 600,
    beside_usual: bool = False,
    observe: Observer | None = None,
) -> ModelExecution | StepExecution:
    """Run a model or step unchanged and as planned, and compare both.

    Args:
        path: file or function of the model or step.
        options: options of reading the planned graph.
        graph: the planned graph.
        schedule: a verified schedule of the graph.
        link: link to the host; required only for schedules with transfers.
        budget_bytes: budget for the plan of a step; None accepts any peak.
        fed: given values of an ONNX model's inputs, by name: numbers, arrays, or files of arrays.
        seed: seed of random inputs and weights, and of the step's own random numbers.
        time_limit: time limit of each run of an ONNX model, in seconds.
        beside_usual: run and time an ONNX model with onnxruntime's own options, too. A step is always run unchanged.
        observe: is told the progress.

    Raises:
        RematError: the model or step cannot be run.
    """
    if names_step(path):
        from remat_cli.pytorch.run.execution import execute_step

        _check_draws(path, fed)

        return execute_step(
            str(path),
            options,
            graph,
            schedule,
            link=link,
            seed=seed,
            budget_bytes=budget_bytes,
            measures=options.measurements is None,
            observe=observe,
        )
    from remat_cli.runtime.onnx.apply import apply_schedule, each_in_parts, read_for
    from remat_cli.runtime.onnx.execution import execute

    return execute(
        path,
        read_for(path, options, keep_data=False),
        apply_schedule(path, options, graph, schedule, {}),
        graph,
        schedule.computes,
        fed=fed,
        seed=seed,
        time_limit=time_limit,
        beside_usual=beside_usual,
        whole=prepare(path, replace(options, parts={})).graph if options.parts else None,
        regions=each_in_parts(path, options),
        observe=observe,
    )
