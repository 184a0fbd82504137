"""What every planner keeps. A planner is enrolled by its line in PLANNERS.

The checks stand in `remat_cli/testing/contract.py`: planners of other packages are held to the same ones. That proofs
agree with the oracle, and no plan is better, is in tests/agreement/test_scopes.py: there one search of the oracle does
for all planners.
"""

from __future__ import annotations

from inspect import signature

import pytest

from remat_cli.planners import PLANNERS
from remat_cli.testing.contract import CHECKS, Check, changed_by_hash_seed
from tests.seeds import is_thorough


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_contract_holds(check: Check, name: str) -> None:
    has_examples = "examples" in signature(check).parameters and not is_thorough()
    check(name, **({"examples": 10} if has_examples else {}))


def test_results_do_not_depend_on_how_python_hashes_names() -> None:
    assert changed_by_hash_seed(tuple(PLANNERS)) == []
