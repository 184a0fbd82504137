"""How many random graphs a sweep draws."""

from __future__ import annotations

from hypothesis import settings


def seeds(count: int) -> range:
    """Return every fourth of a sweep's seeds; all of them in `make thorough`.

    The same seeds are drawn each time, so that more of them would find nothing new tomorrow.
    """
    return range(0, count, 1 if settings.get_current_profile_name() == "thorough" else 4)
