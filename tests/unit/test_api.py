"""Planning from Python, as its page shows it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import remat_cli as remat
from remat_cli.core.arena import Bank
from remat_cli.core.link import Duplex
from remat_cli.core.problem import Status
from remat_cli.core.solve import baseline_of
from remat_cli.errors import InvalidSchedule, UsageError
from tests.places import GRAPHS, ROOT


@pytest.fixture(scope="module")
def graph() -> remat.Prepared:
    return remat.read(GRAPHS / "unet.onnx", dims={"batch": 8})


def test_a_graph_is_read_planned_saved_and_verified(graph: remat.Prepared, tmp_path: Path) -> None:
    planning = remat.plan(graph, "70%", "dtr")
    assert planning.status is Status.FEASIBLE
    assert planning.overhead is not None
    assert planning.schedule is not None
    planning.save(tmp_path / "schedule.json")
    trace = remat.verify(graph, tmp_path / "schedule.json")
    assert trace.peak_bytes == planning.peak_bytes == remat.replay(graph, planning.schedule).peak_bytes


def test_no_file_that_was_read_is_written_over(tmp_path: Path) -> None:
    model, device = tmp_path / "unet.onnx", tmp_path / "device.yaml"
    model.write_bytes((GRAPHS / "unet.onnx").read_bytes())
    device.write_bytes((ROOT / "configs/devices/a100.yaml").read_bytes())
    (tmp_path / "link").symlink_to(model)
    planning = remat.plan(remat.read(model, dims={"batch": 1}, device=str(device)), "90%", "dtr")
    for name in ("unet.onnx", "device.yaml", "link"):
        with pytest.raises(UsageError, match="which is read, would be lost"):
            planning.save(tmp_path / name)
    assert model.read_bytes() == (GRAPHS / "unet.onnx").read_bytes()


def test_a_budget_may_be_a_number_of_bytes(graph: remat.Prepared) -> None:
    enough = remat.plan(graph, 10**12, "keep_all")
    assert (enough.overhead, enough.bound) == (0, 0)
    too_little = remat.plan(graph, 1, "keep_all")
    assert (too_little.status, too_little.schedule, too_little.peak_bytes) == (Status.INFEASIBLE, None, None)


def test_plans_offload_where_that_is_asked_for(graph: remat.Prepared, tmp_path: Path) -> None:
    planning = remat.plan(graph, "60%", "pofo", options={"candidates": 1, "segments": 6}, offload=True)
    assert planning.solution.trace is not None
    assert planning.solution.trace.transfers
    planning.save(tmp_path / "schedule.json")
    assert remat.verify(graph, tmp_path / "schedule.json").time == planning.solution.trace.time
    with pytest.raises(UsageError, match="rotor moves nothing to the host"):
        remat.plan(graph, "60%", "rotor", offload=True)
    with pytest.raises(UsageError, match="no link to it is known"):
        remat.plan(remat.read(GRAPHS / "unet.json"), "60%", offload=True)


def test_a_bank_may_be_an_object_or_text() -> None:
    chain = remat.read(GRAPHS / "skip_chain.json")
    peak = baseline_of(chain.graph).peak_bytes
    banks = {"sram": Bank("sram", peak, Fraction(1)), "psram": Bank("psram", peak, Fraction(1, 2**30))}
    asked: dict[str, Any] = {"planner": "keep_all", "arena": True}
    of_objects = remat.plan(chain, 4 * peak, banks=banks, **asked)
    of_text = remat.plan(chain, 4 * peak, banks={name: str(bank) for name, bank in banks.items()}, **asked)
    assert of_objects.solution.arena is not None
    assert of_objects.solution.arena == of_text.solution.arena
    assert {bank.bytes for bank in of_objects.solution.arena.banks} == {peak}
    with pytest.raises(UsageError, match=r"plan\(\): banks: input should be an object"):
        remat.plan(chain, peak, banks=list(banks.values()), **asked)


def test_what_cannot_be_is_said(graph: remat.Prepared, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no 'dtre'"):
        remat.plan(graph, "80%", "dtre")
    with pytest.raises(UsageError, match="options: candidate: unknown key"):
        remat.plan(graph, "80%", "dtr", options={"candidate": 1})
    with pytest.raises(UsageError, match="there is no plan to save"):
        remat.plan(graph, 1, "keep_all").save(tmp_path / "schedule.json")
    assert not list(tmp_path.iterdir())


def test_a_file_that_says_what_is_not_so_is_refused(graph: remat.Prepared, tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    planning = remat.plan(graph, "100%", "keep_all")
    planning.save(path)
    assert planning.peak_bytes is not None
    path.write_text(path.read_text().replace(f'"peak_bytes": {planning.peak_bytes}', '"peak_bytes": 7'))
    with pytest.raises(InvalidSchedule, match="peak_bytes 7"):
        remat.verify(graph, path)


def test_all_that_is_public_is_there_and_nothing_else() -> None:
    assert all(hasattr(remat, name) for name in remat.__all__)
    with pytest.raises(AttributeError, match="no attribute 'solve_it'"):
        remat.solve_it  # noqa: B018


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"alignment": 0}, r"alignment: an alignment of 0 bytes"),
        ({"offload": "yes"}, r"offload: input should be a valid boolean"),
        ({"max_overhead": "some"}, r"max_overhead: share 'some' is not understood"),
        ({"aligment": 64}, r"aligment: unknown key"),
    ],
)
def test_a_setting_is_held_to_its_declaration(settings: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        remat.plan(remat.read(GRAPHS / "skip_chain.json"), "80%", "keep_all", **settings)


def test_a_choice_may_be_text() -> None:
    graph = remat.read(GRAPHS / "skip_chain.json", link_bandwidth="1000", link_duplex="full")
    assert graph.link is not None
    assert graph.link.duplex is Duplex.FULL


def test_a_choice_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="link_duplex: there is no 'ful'"):
        remat.read(GRAPHS / "skip_chain.json", link_duplex="ful")


def test_a_dim_of_zero_is_noted() -> None:
    assert any("dims of size 0: 'batch'" in note for note in remat.read(GRAPHS / "unet.onnx", dims={"batch": 0}).notes)
