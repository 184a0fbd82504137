from __future__ import annotations

import re
from fractions import Fraction

import pytest

from remat_cli.errors import UsageError
from remat_cli.units import (
    BudgetSpec,
    counted,
    exact_bytes,
    first_of,
    format_bytes,
    format_names,
    format_rate,
    format_share,
    format_time,
    meant_as_share,
    parse_budget,
    parse_budgets,
    parse_bytes,
    parse_duration,
    parse_rate,
    parse_share,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("1_000", 1000),
        ("7B", 7),
        ("8GB", 8 * 10**9),
        ("8 gb", 8 * 10**9),
        ("8G", 8 * 10**9),
        ("8GiB", 8 * 2**30),
        ("512MiB", 512 * 2**20),
        ("1.5kB", 1500),
        (".5KiB", 512),
        ("2TB", 2 * 10**12),
        ("1TiB", 2**40),
    ],
)
def test_parse_bytes_tells_powers_of_1000_from_powers_of_1024(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is not understood"),
        ("GB", "is not understood"),
        ("-8GB", "is not understood"),
        ("8e9", "is not understood"),
        ("8,5GB", "is not understood"),
        ("8 apples", "unknown unit 'apples'"),
        ("8GB/s", "unknown unit 'GB/s'"),
        ("1.5", "not a whole number of bytes"),
        ("0.3KiB", "not a whole number of bytes"),
    ],
)
def test_parse_bytes_says_what_is_wrong(text: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault) as caught:
        parse_bytes(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "share"), [("10%", Fraction(1, 10)), ("0.1", Fraction(1, 10)), ("100 %", Fraction(1))]
)
def test_parse_share_is_exact(text: str, share: Fraction) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["10GB", "ten", "-5%"])
def test_parse_share_refuses_what_is_no_share(text: str) -> None:
    with pytest.raises(UsageError, match="share"):
        parse_share(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("30s", 30), ("2m", 120), ("2 min", 120), ("1h", 3600), ("500ms", 0.5), ("3us", 3e-6)],
)
def test_parse_duration_is_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["soon", "3 days", "-1s"])
def test_parse_duration_refuses_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "rate"), [("12GB/s", 12 * 10**9), ("1.5 MiB/s", 3 * 2**19), ("2.5", Fraction(5, 2))])
def test_parse_rate_is_in_bytes_per_second_or_as_it_is(text: str, rate: Fraction) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["12GB", "12GB/min", "12 furlongs/s", "fast"])
def test_parse_rate_refuses_what_is_no_rate(text: str) -> None:
    with pytest.raises(UsageError, match="rate"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("min", BudgetSpec(smallest=True)),
        (" MIN ", BudgetSpec(smallest=True)),
        ("80%", BudgetSpec(share=Fraction(4, 5))),
        ("8GiB", BudgetSpec(device_bytes=8 * 2**30)),
        ("60% of activations", BudgetSpec(share=Fraction(3, 5), of_activations=True)),
        (" 60 %  of Activations ", BudgetSpec(share=Fraction(3, 5), of_activations=True)),
    ],
)
def test_parse_budget_takes_a_size_a_share_or_the_smallest(text: str, spec: BudgetSpec) -> None:
    assert parse_budget(text) == spec


@pytest.mark.parametrize("text", ["0", "0%", "0GB", "0% of activations"])
def test_parse_budget_refuses_a_budget_of_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="must be above 0"):
        parse_budget(text)


def test_parse_budget_speaks_of_a_budget_and_hints_at_every_form() -> None:
    with pytest.raises(UsageError, match=r"budget '0\.8' is not a whole number of bytes") as caught:
        parse_budget("0.8")
    assert "80%" in caught.value.hint


def test_a_share_of_the_plain_peak_is_rounded_down() -> None:
    assert BudgetSpec(share=Fraction(1, 3)).bytes_of(100, 40, 60) == 33


def test_a_share_of_activations_comes_on_top_of_what_is_always_there() -> None:
    assert parse_budget("50% of activations").bytes_of(101, 40, 61) == 70
    assert parse_budget("100% of activations").bytes_of(101, 40, 61) == 101


def test_a_size_does_not_depend_on_the_plain_peak() -> None:
    assert BudgetSpec(device_bytes=5).bytes_of(100, 40, 60) == 5


def test_the_smallest_budget_has_no_size_yet() -> None:
    with pytest.raises(ValueError, match="min"):
        BudgetSpec(smallest=True).bytes_of(100, 40, 60)


@pytest.mark.parametrize(
    ("budget", "peak", "says"),
    [(80, 10**6, "80 bytes: did you mean 80%?"), (101, 10**6, ""), (80, 100, ""), (6, 10_000, "")],
)
def test_a_budget_of_hardly_any_bytes_may_be_a_percentage(budget: int, peak: int, says: str) -> None:
    assert meant_as_share(budget, peak) == says


@pytest.mark.parametrize("text", ["min", "80%", "2.5%", "60% of activations"])
def test_a_budget_reads_back_as_it_is_shown(text: str) -> None:
    assert str(parse_budget(text)) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.000 kB"),
        (9_999, "9.999 kB"),
        (10_000, "10.00 kB"),
        (99_996, "100.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.000 MB"),
        (7_960_000_000, "7.960 GB"),
        (38_059_356_160, "38.06 GB"),
        (1_500_000_000_000, "1.500 TB"),
        (-1_500, "-1.500 kB"),
        (10**400, "about 10^400 B"),
        (-(10**4000), "about -10^4000 B"),
    ],
)
def test_format_bytes_shows_four_digits_in_the_unit_that_reads_best(size: int, text: str) -> None:
    assert format_bytes(size) == text
    assert exact_bytes(size) == f"{text} ({size} bytes)"


@pytest.mark.parametrize(
    ("time", "unit", "text"),
    [
        (999, "ns", "999 ns"),
        (1_500, "ns", "1.5 µs"),
        (120_345_000, "ns", "120.3 ms"),
        (2_000_000_000, "ns", "2 s"),
        (12_345_000_000_000, "ns", "12,345 s"),
        (999, "flop", "999 FLOP"),
        (4_100_000_000, "flop", "4.1 GFLOP"),
        (1_234_567, "unit", "1,234,567"),
    ],
)
def test_format_time_shows_the_multiple_that_reads_best(time: int, unit: str, text: str) -> None:
    assert format_time(time, unit) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (0.0000012, "1.2e-04 %"),
        (0.00123, "0.123 %"),
        (0.0199, "1.99 %"),
        (Fraction(1, 8), "12.50 %"),
        (1.5, "150.0 %"),
        (-0.02, "-2.00 %"),
    ],
)
def test_format_share_shows_the_digits_that_matter(share: float | Fraction, text: str) -> None:
    assert format_share(share) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("30%..100%:8", "30% 40% 50% 60% 70% 80% 90% 100%"),
        ("50%..75%", "50% 53.5714% 57.1429% 60.7143% 64.2857% 67.8571% 71.4286% 75%"),
        ("100%..40%:3", "100% 70% 40%"),
        ("1GB..2GB:3", "1.000 GB 1.500 GB 2.000 GB"),
        ("10..13:3", "10 B 11 B 13 B"),
        (" 2GB , 512MiB,min, 60% ", "2.000 GB 536.9 MB min 60%"),
        ("60%,50%..70%:3,60%", "60% 50% 70%"),
        ("0.5GB..1.5GB:2", "500.0 MB 1.500 GB"),
        ("20% of activations..40% of activations:2", "20% of activations 40% of activations"),
    ],
)
def test_parse_budgets_takes_lists_and_ranges(text: str, shown: str) -> None:
    assert " ".join(str(budget) for budget in parse_budgets(text)).split() == shown.split()


def test_the_budgets_of_a_range_are_exact() -> None:
    assert parse_budgets("10%..20%:4")[1].share == Fraction(2, 15)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "budget '' is not understood"),
        ("60%,,80%", "budget '' is not understood"),
        ("..", "not understood"),
        ("60%..", "not understood"),
        ("..60%", "not understood"),
        ("30%..60%:", "not understood"),
        ("30%..60%:x", "not understood"),
        ("30%..60%:1", "2 to 200 budgets, not 1"),
        ("30%..60%:201", "2 to 200 budgets, not 201"),
        ("30%..60%:9999999", "not understood"),
        ("min..60%", "cannot begin or end at min"),
        ("30%..2GB", "one end is a share and the other a size"),
        ("30% of activations..60%", "only one end is a share of activations"),
        ("2..8GB:3", "only one end has a unit"),
        ("0%..60%", "above 0 %"),
        ("30%..60 percent", "unknown unit"),
        (f"30%..{'9' * 500}", "not understood"),
    ],
)
def test_budgets_that_are_wrong_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_budgets(text)


@pytest.mark.parametrize(
    ("rate", "unit", "text"),
    [
        (Fraction(32), "ns", "32.00 GB/s"),
        (Fraction(16, 5), "ns", "3.200 GB/s"),
        (Fraction(1, 3), "unit", "0.3333 B per unit of time"),
        (Fraction(2000), "flop", "2.000 kB per FLOP"),
    ],
)
def test_a_rate_is_told_a_second_where_time_is_counted_in_seconds(rate: Fraction, unit: str, text: str) -> None:
    assert format_rate(rate, unit) == text


def test_the_first_texts_are_joined_and_the_rest_counted() -> None:
    texts = ["a", "b", "c"]
    assert first_of(texts, 3) == "a, b, c"
    assert first_of(texts, 2, "; ") == "a; b and 1 more"
    assert format_names(texts * 1000, 1) == "'a' and 2,999 more"


def test_a_noun_is_plural_but_after_one() -> None:
    assert [counted(number, "plan") for number in (0, 1, 2000)] == ["0 plans", "1 plan", "2,000 plans"]
