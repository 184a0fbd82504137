"""What reports say of a link: how busy each of its queues is, and who is away meanwhile."""

from __future__ import annotations

import pytest

from remat_cli.core.link import Duplex
from remat_cli.reports.timeline import Lifetime, Run
from remat_cli.reports.transfers import Moved, busy_shares, moved_tensors, queues
from tests.graphs import chain
from tests.unit.reports.rendering import moving


def test_a_half_duplex_link_is_one_queue() -> None:
    run = moving(Duplex.HALF)
    (queue,) = queues(run).items()
    assert queue == ("link", run.trace.transfers)


def test_a_full_duplex_link_is_a_queue_each_way() -> None:
    run = moving(Duplex.FULL)
    out, *back = run.trace.transfers
    assert queues(run) == {"to host": [out], "back": back}


def test_where_nothing_moves_there_is_no_queue() -> None:
    assert queues(Run.plain(chain(1, 1))) == {}


def test_how_busy_a_queue_is_in_each_slot() -> None:
    # Out from 1 to 5, back from 5 to 9, of 10 units of time.
    transfers = moving(Duplex.HALF).trace.transfers
    assert busy_shares(transfers, 10, 5).tolist() == pytest.approx([0.5, 1, 1, 1, 0.5])
    assert busy_shares(transfers[1:], 10, 2).tolist() == pytest.approx([0, 0.8])
    # What the run is shorter by than the time that is shown, and what outlasts it, is left out.
    assert busy_shares(transfers, 20, 2).tolist() == pytest.approx([0.8, 0])
    assert busy_shares(transfers, 4, 2).tolist() == pytest.approx([0.5, 1])
    assert busy_shares((), 4, 2).tolist() == [0, 0]


def test_a_tensor_is_away_from_its_free_to_its_way_back() -> None:
    assert moved_tensors(moving(Duplex.HALF)) == [Moved("t1", 4 * 10**6, 2, (Lifetime(4, 5),))]
    assert moved_tensors(Run.plain(chain(1, 1))) == []
