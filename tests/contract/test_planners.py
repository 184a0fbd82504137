"""What every planner keeps. A planner is enrolled by its line in PLANNERS.

The checks stand in `remat_cli/testing/contract.py`: planners of other packages are held to the same ones. That proofs
agree with the oracle, and no plan is better, is in tests/agreement/test_scopes.py: there one search of the oracle does
for all planners.
"""

from __future__ import annotations

import pytest

from remat_cli.planners import PLANNERS
from remat_cli.testing.contract import FIXED_CHECKS, RANDOM_CHECKS, Check, RandomCheck, changed_by_hash_seed
from tests.seeds import is_thorough


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("check", RANDOM_CHECKS.values(), ids=RANDOM_CHECKS)
def test_contract_holds_on_random_problems(check: RandomCheck, name: str) -> None:
    check(name, examples=100 if is_thorough() else 10)


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("check", FIXED_CHECKS.values(), ids=FIXED_CHECKS)
def test_contract_holds(check: Check, name: str) -> None:
    check(name)


def test_results_do_not_depend_on_how_python_hashes_names() -> None:
    assert changed_by_hash_seed(tuple(PLANNERS)) == []
