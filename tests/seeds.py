"""How much of what takes long a run of the tests does."""

from __future__ import annotations

from hypothesis import settings


def is_thorough() -> bool:
    """Tell whether this is a run of `make thorough`."""
    return settings.default == settings.get_profile("thorough")


def seeds(count: int) -> range:
    """Return every fourth of a sweep's seeds; all of them in `make thorough`.

    The same seeds are drawn each time, so that more of them would find nothing new tomorrow.
    """
    return range(0, count, 1 if is_thorough() else 4)
