"""Steps that run as planned have the gradients of eager; done naively, they would not."""

from __future__ import annotations

import pytest

from remat_cli.formats.torch import joint
from remat_cli.runtime.torch.choice import Plain
from tests.torch_steps import CASES, Again, Case, attention_dropout, changing_buffer, gpt, outcome


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_all_that_may_run_again_changes_no_bit(case: Case) -> None:
    plain = outcome(case, Plain())
    assert outcome(case, Again()).differences(plain) == []


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.__name__ != "recurrent"], ids=lambda case: case.__name__
)
def test_unplanned_run_of_the_graph_is_eager(case: Case) -> None:
    assert outcome(case, Plain()).differences(outcome(case)) == []


@pytest.mark.parametrize("case", [gpt, attention_dropout])
def test_random_ops_that_run_again_would_give_wrong_gradients(case: Case) -> None:
    naive = outcome(case, Again(naive=True))
    assert naive.differences(outcome(case, Plain())) != []


def test_reading_a_changed_buffer_again_would_give_wrong_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = outcome(changing_buffer, Plain())
    monkeypatch.setattr(joint, "keep_old_values", lambda graph: {})
    assert "inner.weight" in outcome(changing_buffer, Again(naive=True)).differences(plain)
