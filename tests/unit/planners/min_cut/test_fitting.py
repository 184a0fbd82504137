"""Making a sequence fit by priced cuts, and the moves that change one."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from remat_cli.core.simulate import simulate
from remat_cli.generate.unet import UNet
from remat_cli.planners.min_cut.fitting import STARTS, BytePrices, count_layout, fit, move, without_needless
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import GraphReads
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.synthesis import synthesize

GRAPH = synthesize(UNet(), ops=150).graph
PLAIN = RematSequence.plain(GRAPH)
BUDGET = PLAIN.peak * 45 // 100


@pytest.mark.parametrize("prices", [*STARTS, BytePrices(window=50)], ids=str)
def test_what_fits_is_a_plan_in_the_same_order(prices: BytePrices) -> None:
    fitted = fit(PLAIN, BUDGET, prices, Limits.of(60.0), most_cuts=1000)
    trace = simulate(GRAPH, fitted.schedule())
    assert trace.peak_bytes == fitted.peak <= BUDGET
    assert trace.time == fitted.time > GRAPH.total_time
    assert fitted.keeps_input_order


def test_it_gives_up_after_so_many_cuts_with_the_least_peak_so_far() -> None:
    peaks = [fit(PLAIN, BUDGET, BytePrices(), Limits.of(60.0), most_cuts=most).peak for most in (0, 1, 3, 1000)]
    assert peaks[0] == PLAIN.peak
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[1] > BUDGET >= peaks[-1]


def test_work_is_counted_and_ends_it() -> None:
    limits = Limits.of(inf, 10_000)
    count_layout(PLAIN, limits)
    assert limits.work < 10_000
    assert fit(PLAIN, BUDGET, BytePrices(), Limits.of(inf, 0), most_cuts=1000) is PLAIN


def test_prices_of_what_is_made_early_are_higher_and_noise_is_its_seeds() -> None:
    reads = GraphReads.of(GRAPH)
    weights = BytePrices(tilt=0.5).weights(reads)
    made = np.maximum(GRAPH.arrays.producer, 0)
    assert (np.diff(weights[np.argsort(made, kind="stable")]) <= 0).all()
    assert weights.max() == 1.5
    noisy, again, other = (BytePrices(noise=0.3, seed=seed).weights(reads) for seed in (1, 1, 2))
    assert noisy.tolist() == again.tolist() != other.tolist()
    assert (noisy <= 1.3 * BytePrices().weights(reads)).all()


def test_a_move_leads_from_a_plan_that_fits_to_another() -> None:
    start = without_needless(fit(PLAIN, BUDGET, STARTS[0], Limits.of(60.0), 1000), BUDGET, Limits.of(60.0))
    found = [move(start, BUDGET, np.random.default_rng(seed), Limits.of(60.0)) for seed in range(4)]
    plans = [plan for plan in found if plan is not None]
    assert any(plan.names != start.names for plan in plans)
    for plan in plans:
        assert simulate(GRAPH, plan.schedule()).peak_bytes <= BUDGET
        assert plan.keeps_input_order
    again = move(start, BUDGET, np.random.default_rng(0), Limits.of(60.0))
    assert (again and again.names) == (found[0] and found[0].names)
