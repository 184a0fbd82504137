"""The lowest releases that `pyproject.toml` declares, as constraints for pip: `python -m tests.lowest`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from tests.places import ROOT

# Extras whose lowest releases are tried, beside what remat needs itself. The lowest release of PyTorch is one of those
# that the workflow runs the tests of PyTorch on.
EXTRAS = ("highs", "run", "plot", "cluster")
_DECLARED = re.compile(r"([A-Za-z0-9_.-]+)>=([0-9.]+)")


def constraints() -> Iterator[str]:
    """Yield a line for each requirement: its lowest release, with the newest mend of that."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for declared in (*project["dependencies"], *(each for name in EXTRAS for each in extras[name])):
        found = _DECLARED.match(declared)
        assert found is not None, declared
        name, release = found.groups()
        yield f"{name}=={release}" if release.count(".") >= 2 else f"{name}=={release}.*"


if __name__ == "__main__":
    print(*constraints(), sep="\n")
