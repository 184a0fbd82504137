"""Families of graphs and their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remat_cli.config.document import Document, checked, unknown_name
from remat_cli.generate import GENERATORS, Generator


def make_generator(family: str, options: Mapping[str, Any], source: str = "--option") -> Generator:
    """Build the generator of this family of graphs with these options, held as those of a planner are.

    Raises:
        UsageError: there is no such family, or no such option, or a value is wrong.
    """
    if family not in GENERATORS:
        raise unknown_name("FAMILY", family, GENERATORS)
    return checked(GENERATORS[family], Document(options, source))
