"""What every planner keeps. A planner is enrolled by its line in PLANNERS.

The checks stand in `remat_cli/testing/contract.py`: planners of other packages are held to the same ones. That proofs
agree with the oracle, and no plan is better, is in tests/agreement/test_scopes.py: there one search of the oracle does
for all planners.
"""

from __future__ import annotations

import pytest

from remat_cli.planners import PLANNERS
from remat_cli.testing.contract import CHECKS, Check, changed_by_hash_seed


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_contract_holds(check: Check, name: str) -> None:
    check(name)


def test_results_do_not_depend_on_how_python_hashes_names() -> None:
    assert changed_by_hash_seed(tuple(PLANNERS)) == []
