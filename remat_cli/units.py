"""Sizes, shares, durations and rates: parsing and formatting.

Bytes are integers. GB and the like are decimal (10^9), GiB and the like binary (2^30).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import log10

from remat_cli.errors import UsageError

_DECIMAL = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SHORT = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BYTES = {**_DECIMAL, **_BINARY, **_SHORT}
_SECONDS = {"": Fraction(1), "ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "ms": Fraction(1, 1000)}
_SECONDS["µs"] = _SECONDS["us"]
_SECONDS |= {"s": Fraction(1), "m": Fraction(60), "min": Fraction(60), "h": Fraction(3600)}
_LONGEST = 60
_LARGEST_IN_FULL = 10**30
_POINTS = 8
_MOST_POINTS = 200
_ACTIVATIONS = re.compile(r"\s*(.+%)\s+of\s+activations\s*", re.IGNORECASE)
# A budget of so few bytes is more likely meant as a percentage.
_MOST_PERCENT = 100
_RANGE = re.compile(r"(?P<low>[^.:].*?)\.\.(?P<high>[^.:][^:]*)(?::(?P<count>\d{1,6}))?")
_NUMBER = re.compile(r"\s*(\d+(?:_\d+)*(?:\.\d+)?|\.\d+)\s*([A-Za-zµ%/]*)\s*")


def _number_and_unit(text: str, what: str, example: str) -> tuple[Fraction, str]:
    # No quantity here needs as many digits as Python refuses to convert.
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        shown = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
        raise UsageError(f"{what} {shown!r} is not understood", hint=f"write it like {example}")
    return Fraction(match[1].replace("_", "")), match[2]


def parse_bytes(text: str) -> int:
    """Parse a number of bytes: "8GB" (10^9), "512MiB" (2^20), "1024".

    Raises:
        UsageError: the text is no size, or not a whole number of bytes.
    """
    number, unit = _number_and_unit(text, "size", "8GB, 512MiB or 1024")
    factor = _BYTES.get(unit.upper())
    if factor is None:
        raise UsageError(
            f"size {text!r} has an unknown unit {unit!r}",
            hint="use B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)",
        )
    size = number * factor
    if size.denominator != 1:
        raise UsageError(f"size {text!r} is not a whole number of bytes", hint="use a whole number, or a larger unit")
    return int(size)


def parse_share(text: str) -> Fraction:
    """Parse a share: "10%" or "0.1" is the fraction 1/10.

    Raises:
        UsageError: the text is no share.
    """
    number, unit = _number_and_unit(text, "share", "10% or 0.1")
    if unit not in ("", "%"):
        raise UsageError(f"share {text!r} is not understood", hint="write it like 10% or 0.1")
    return number / 100 if unit == "%" else number


def parse_duration(text: str) -> float:
    """Parse a duration in seconds: "30s", "2m", "500ms", "5".

    Raises:
        UsageError: the text is no duration.
    """
    number, unit = _number_and_unit(text, "duration", "30s, 2m or 500ms")
    factor = _SECONDS.get(unit)
    if factor is None:
        raise UsageError(f"duration {text!r} has an unknown unit {unit!r}", hint="use ms, s, m or h")
    return float(number * factor)


def parse_rate(text: str) -> Fraction:
    """Parse a rate: "12GB/s" is in bytes per second.

    A plain number stays as it is, in bytes per unit of the graph's time.

    Raises:
        UsageError: the text is no rate.
    """
    number, unit = _number_and_unit(text, "rate", "12GB/s")
    if unit == "":
        return number
    size, slash, per = unit.partition("/")
    if slash != "/" or per != "s" or size.upper() not in _BYTES:
        raise UsageError(f"rate {text!r} is not understood", hint="write it like 12GB/s")
    return number * _BYTES[size.upper()]


@dataclass(frozen=True, slots=True)
class BudgetSpec:
    """A requested budget, before the graph is known.

    Exactly one of the first three attributes is given.

    Attributes:
        device_bytes: total device memory in bytes.
        share: share of the plain run's peak.
        smallest: whether to plan at the smallest budget that can be found.
        of_activations: whether the share is of the activations' peak: the plain run's memory without parameters,
            gradients, optimizer state and inputs. These count in full.
    """

    device_bytes: int | None = None
    share: Fraction | None = None
    smallest: bool = False
    of_activations: bool = False

    def __str__(self) -> str:
        if self.smallest:
            return "min"
        if self.share is not None:
            return f"{float(self.share) * 100:g}%{' of activations' if self.of_activations else ''}"
        return format_bytes(self.device_bytes or 0)

    def bytes_of(self, plain_peak_bytes: int, other_bytes: int, activation_bytes: int) -> int:
        """Return the budget in bytes, rounded down.

        Args:
            plain_peak_bytes: peak of the graph's plain run.
            other_bytes: parameters, gradients, optimizer state and inputs.
            activation_bytes: peak of the plain run's other memory.

        Raises:
            ValueError: "min" has no size.
        """
        if self.share is not None and self.of_activations:
            return other_bytes + int(self.share * activation_bytes)
        if self.share is not None:
            return int(self.share * plain_peak_bytes)
        if self.device_bytes is None:
            raise ValueError("'min' has no size before the search for it")
        return self.device_bytes


def parse_budget(text: str) -> BudgetSpec:
    """Parse a budget: "8GB", "8GiB", "80%", "60% of activations", "min", "1024".

    Raises:
        UsageError: the text is no budget, or not above zero.
    """
    if text.strip().lower() == "min":
        return BudgetSpec(smallest=True)
    of_activations = _ACTIVATIONS.fullmatch(text) if len(text) <= _LONGEST else None
    if of_activations or text.strip().endswith("%"):
        share = parse_share(of_activations[1] if of_activations else text)
        if share <= 0:
            raise UsageError(f"budget {text!r} must be above 0 %", hint="write it like 80% (of the plain run's peak)")
        return BudgetSpec(share=share, of_activations=of_activations is not None)
    try:
        size = parse_bytes(text)
    except UsageError as error:
        raise UsageError(
            error.message.replace("size", "budget", 1),
            hint="write it like 8GB, 8GiB, 80% (of the plain peak), 60% of activations, or min",
        ) from None
    if size <= 0:
        raise UsageError(f"budget {text!r} must be above 0 bytes", hint="write it like 8GB, 8GiB, 80% or min")
    return BudgetSpec(device_bytes=size)


def meant_as_share(budget_bytes: int, plain_peak_bytes: int) -> str:
    """Ask whether a tiny budget was meant as a share (80 for 80%).

    The text is empty for other budgets.
    """
    if budget_bytes > _MOST_PERCENT or plain_peak_bytes <= _MOST_PERCENT**2:
        return ""
    return f"{budget_bytes} bytes: did you mean {budget_bytes}%?"


def parse_budgets(text: str) -> tuple[BudgetSpec, ...]:
    """Parse a list of budgets: "30%..100%:8" or "2GB,3GB,50%,min".

    They stay in the written order. A range names its number of budgets, 8 by default: evenly spaced, including both
    ends.

    Raises:
        UsageError: a part of the list is no budget and no range.
    """
    parts = [part.strip() for part in text.split(",")]
    return tuple(dict.fromkeys(budget for part in parts for budget in _budgets_of(part)))


def _budgets_of(part: str) -> tuple[BudgetSpec, ...]:
    if ".." not in part:
        return (parse_budget(part),)
    hint = "write a range like 30%..100%:8 (eight budgets) or 2GB..8GB:4"
    match = _RANGE.fullmatch(part) if len(part) <= 2 * _LONGEST else None
    if match is None:
        raise UsageError(f"budgets {part[: 2 * _LONGEST]!r} are not understood", hint=hint)
    count = int(match["count"] or _POINTS)
    if not 2 <= count <= _MOST_POINTS:
        raise UsageError(f"budgets {part!r}: a range has 2 to {_MOST_POINTS} budgets, not {count}", hint=hint)
    low, high = parse_budget(match["low"]), parse_budget(match["high"])
    if low.smallest or high.smallest:
        raise UsageError(
            f"budgets {part!r}: a range cannot begin or end at min, which has to be searched",
            hint="list it beside the range, like min,50%..100%:6",
        )
    if low.of_activations != high.of_activations:
        raise UsageError(f"budgets {part!r}: only one end is a share of activations", hint="write both ends alike")
    if low.share is not None and high.share is not None:
        step = (high.share - low.share) / (count - 1)
        return tuple(replace(low, share=low.share + i * step) for i in range(count))
    if low.device_bytes is None or high.device_bytes is None:
        raise UsageError(f"budgets {part!r}: one end is a share and the other a size", hint=hint)
    if match["low"].strip().isdigit() != match["high"].strip().isdigit():
        raise UsageError(f"budgets {part!r}: only one end has a unit", hint="give both ends one, like 2GB..8GB:4")
    width = high.device_bytes - low.device_bytes
    return tuple(BudgetSpec(device_bytes=low.device_bytes + width * i // (count - 1)) for i in range(count))


def format_bytes(size: int) -> str:
    """Write a size in the decimal unit that reads best: "7.960 GB".

    It has four digits.
    """
    sign, magnitude = ("-", -size) if size < 0 else ("", size)
    if magnitude >= _LARGEST_IN_FULL:
        return f"{format_count(size)} B"
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        # 999.95 kB would be written as 1000.0 kB; the next unit up says it better.
        if magnitude >= factor * 0.99995:
            value = magnitude / factor
            digits = 3 if value < 9.9995 else 2 if value < 99.995 else 1
            return f"{sign}{value:.{digits}f} {unit}"
    return f"{sign}{magnitude} B"


def exact_bytes(size: int) -> str:
    """Write a size with its exact bytes: "7.960 GB (7960123456 bytes)"."""
    return f"{format_bytes(size)} ({size} bytes)"


def format_names(names: Sequence[str], most: int) -> str:
    """Quote the first names, and count the rest: "'a', 'b' and 3 more"."""
    return first_of(list(map(repr, names)), most)


def first_of(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first texts, and count the rest: "a, b and 3 more"."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: "1 plan", "2,000 plans"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_count(number: int) -> str:
    """Write a whole number; a very long one as a magnitude."""
    if abs(number) < _LARGEST_IN_FULL:
        return str(number)
    return f"about {'-' if number < 0 else ''}10^{log10(abs(number)):.0f}"


def format_time(time: int, unit: str) -> str:
    """Write `time`, counted in `unit` (ns, flop or unit), in the best multiple."""
    if unit == "ns":
        for name, factor in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
            # 999.95 µs would be written as 1000 µs; the next unit up says it better.
            if time >= factor * 0.99995:
                return f"{time / factor:.4g} {name}" if time < 9999 * factor else f"{time / factor:,.0f} {name}"
        return f"{time} ns"
    suffix = {"flop": "FLOP", "unit": ""}.get(unit, unit)
    for name, factor in (("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6)):
        if suffix == "FLOP" and time >= factor:
            return f"{time / factor:.4g} {name}{suffix}"
    return f"{time:,} {suffix}".rstrip()


def format_rate(bytes_per_time: Fraction, unit: str) -> str:
    """Write a rate in bytes per unit of a graph's time.

    This is per second for a graph in ns, otherwise per FLOP or unit.
    """
    if unit == "ns":
        return f"{format_bytes(round(bytes_per_time * 10**9))}/s"
    per = {"flop": "FLOP", "unit": "unit of time"}.get(unit, unit)
    size = format_bytes(round(bytes_per_time)) if bytes_per_time >= 1000 else f"{float(bytes_per_time):.4g} B"
    return f"{size} per {per}"


def format_share(share: float | Fraction) -> str:
    """Write a share as a percentage with the digits that matter: "1.99 %"."""
    percent = float(share) * 100
    if percent == 0:
        return "0 %"
    if abs(percent) < 0.001:
        return f"{percent:.1e} %"
    digits = 3 if abs(percent) < 1 else 2 if abs(percent) < 100 else 1
    return f"{percent:.{digits}f} %"


def more_time(overhead: float) -> str:
    """Write an overhead in words; a step in parts may take less time than the step without."""
    return f"{format_share(abs(overhead))} {'less' if overhead < 0 else 'more'} time"
