"""Settings of trainers that make a model from its config fit without a plan: what eager takes with each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from remat_cli.config import GraphOptions
from remat_cli.core.problem import Observer
from remat_cli.studies.fit import Question, fit_eager

_CHECKPOINTS, _ADAPTERS, _SMALL_STATE = {"checkpointing": True}, {"lora": "16"}, {"optimizer": "adam8bit"}
_TRIED = (_CHECKPOINTS, _SMALL_STATE, {**_CHECKPOINTS, **_SMALL_STATE}, _ADAPTERS, {**_CHECKPOINTS, **_ADAPTERS})
_WITH_LARGE_STATE = ("adam", "adamw")


@dataclass(frozen=True)
class SettingFit:
    """A trainer's setting, and the largest value of the dimension that fits with it.

    Attributes:
        changes: options that differ from the call's.
        value: the largest value; None if the smallest does not fit.
        peak_bytes: eager's peak at that value, else at the smallest.
        time: of the step at the same value, without a plan.
    """

    changes: Mapping[str, Any]
    value: int | None
    peak_bytes: int
    time: int


# Runs a step in eager mode: its peak in bytes and its time; None where that is not known.
EagerRun = Callable[[GraphOptions], tuple[int, int] | None]


def fit_settings(
    question: Question, options_at: Callable[[int], GraphOptions], run: EagerRun, observe: Observer
) -> tuple[SettingFit, ...]:
    """Search the largest value that fits with each setting that is not in force.

    Args:
        question: the search.
        options_at: returns the options of the model at a value of the dimension.
        run: runs the step on tensors without data.
        observe: is told the progress.
    """
    return tuple(
        found
        for changes in _settings(options_at(question.multiple_of))
        if (found := _fit(question, changes, options_at, run, observe)) is not None
    )


def _settings(options: GraphOptions) -> Iterator[Mapping[str, Any]]:
    """Yield the settings that change something."""
    for changes in _TRIED:
        has_state = options.optimizer in _WITH_LARGE_STATE
        if ("optimizer" not in changes or has_state) and not any(
            getattr(options, name) for name in changes if name != "optimizer"
        ):
            yield changes


def _fit(
    question: Question,
    changes: Mapping[str, Any],
    options_at: Callable[[int], GraphOptions],
    run: EagerRun,
    observe: Observer,
) -> SettingFit | None:
    times: dict[int, int] = {}

    def peak_at(value: int) -> int | None:
        known = run(replace(options_at(value), **changes))
        if known is None:
            return None
        peak, times[value] = known
        return peak

    found = fit_eager(question, peak_at, observe, (question.multiple_of,))
    if found is None:
        return None
    shown = found.value or question.multiple_of
    return SettingFit(MappingProxyType(dict(changes)), found.value, found.peaks[shown], times[shown])
