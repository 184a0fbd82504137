"""The measured figures of a project's models, and their baseline file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import isfinite
from os.path import exists  # unlike those of Path, false for a name that no file can have
from pathlib import Path
from typing import Any

from remat_cli.config import Document, checked
from remat_cli.errors import UsageError
from remat_cli.formats.source import LARGEST_CONFIG, parse_json, read_bytes
from remat_cli.planning import exact_overhead

_FORMAT = "remat.baseline/1"


@dataclass(frozen=True)
class Figures:
    """The measured figures of one model.

    Attributes:
        plain_peak_bytes: peak of the plain run.
        hard_limit_bytes: memory that every plan needs, in any order.
        limit_bytes: the budget or largest peak allowed for the model; with `arena: true` for the arena, without
            resident bytes; None without either.
        plan_peak_bytes: peak of the plan; None if there is none, or none was asked for.
        overhead: overhead of the plan, as a share of the plain run's time; None likewise.
        plain_time: time of the plain run; None in a baseline of an older version.
        plan_time: time of the plan; None likewise, and without a plan.
        at_peak: bytes of the tensors that fill the plain peak, without those below a hundredth of it; None in a
            baseline of an older version.
        op_types: number of ops of each type; None likewise.
        arena_bytes: size of the plan's arena, or the plain run's if no plan was asked for; None without addresses.
        eager_peak_bytes: peak of a PyTorch step in eager mode, without a plan; None of anything else, and where it is
            not known.
    """

    plain_peak_bytes: int
    hard_limit_bytes: int
    limit_bytes: int | None = None
    plan_peak_bytes: int | None = None
    overhead: float | None = None
    plain_time: int | None = None
    plan_time: int | None = None
    at_peak: dict[str, int] | None = None
    op_types: dict[str, int] | None = None
    arena_bytes: int | None = None
    eager_peak_bytes: int | None = None

    @property
    def exact_overhead(self) -> Fraction | None:
        """The overhead to compare with a limit.

        It is exact if both times are known, otherwise the rounded figure.
        """
        if self.plain_time is not None and self.plan_time is not None:
            return exact_overhead(self.plan_time, self.plain_time)
        return Fraction(self.overhead) if self.overhead is not None and isfinite(self.overhead) else None


@dataclass(frozen=True)
class _BaselineFile:
    format: str
    models: dict[str, dict[str, Any]]


def read_baseline(path: Path) -> dict[str, Figures]:
    """Return the figures by model name; empty if there is no file.

    Raises:
        UsageError: the file is malformed.
    """
    if not exists(path):
        return {}
    values = parse_json(path, read_bytes(path, error=UsageError, largest=LARGEST_CONFIG), error=UsageError)
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise UsageError(
            f"{path}: is no baseline of the format {_FORMAT!r}",
            hint="write it anew with 'remat check --update-baseline'",
        )
    raw = checked(_BaselineFile, Document(values, str(path)))
    return {name: checked(Figures, Document(figures, f"{path}: {name!r}")) for name, figures in raw.models.items()}


def baseline_bytes(figures: Mapping[str, Figures]) -> bytes:
    """Return the content of a baseline file: measured figures only, sorted."""
    models = {name: asdict(measured) for name, measured in figures.items()}
    text = json.dumps({"format": _FORMAT, "models": models}, ensure_ascii=False, indent=2, sort_keys=True)
    return f"{text}\n".encode()
