"""Memory banks in the form NAME=SIZE or NAME=SIZE:SPEED."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import partial

from remat_cli.config.document import Document, placed
from remat_cli.core.arena import Bank
from remat_cli.errors import UsageError
from remat_cli.units import parse_bytes

_EXAMPLE = "sram=512KiB or psram=8MiB:0.4"
_SPEED = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)


def parse_bank(text: str) -> Bank:
    """Parse a bank, such as "psram=8MiB:0.4".

    A bank without a speed is as fast as the first.

    Raises:
        UsageError: a part is missing or wrong.
    """
    name, equals, rest = text.partition("=")
    size, colon, speed = rest.partition(":")
    if not equals or not name.strip() or not size.strip():
        raise UsageError(f"bank {text!r} is not NAME=SIZE[:SPEED]", hint=f"write it like {_EXAMPLE}")
    size_bytes = parse_bytes(size)
    if size_bytes < 1:
        raise UsageError(f"bank {text!r} holds nothing", hint=f"write it like {_EXAMPLE}")
    if colon and (not _SPEED.fullmatch(speed.strip()) or not Fraction(speed.strip())):
        raise UsageError(
            f"bank {text!r}: {speed!r} is no speed",
            hint="give bytes a time beside the first bank: 0.4 is two fifths as fast",
        )
    return Bank(name.strip(), size_bytes, Fraction(speed.strip()) if colon else Fraction(1))


def bank_entry(text: str) -> tuple[str, Bank]:
    """Parse a bank with `parse_bank`; return its name and the bank."""
    bank = parse_bank(text)
    return bank.name, bank


def banks_section(value: Mapping[str, str | int], document: Document) -> dict[str, Bank]:
    """Return the banks of a YAML section, each NAME: SIZE[:SPEED].

    Raises:
        UsageError: a bank is wrong; the message has its place.
    """
    return dict(
        placed(document, ("banks", name), partial(bank_entry, f"{name}={size}")) for name, size in value.items()
    )


def parse_banks(texts: Iterable[str]) -> tuple[Bank, ...]:
    """Return the banks in the order of their texts.

    Raises:
        UsageError: a bank is wrong, or two have the same name.
    """
    banks = tuple(parse_bank(text) for text in texts)
    names = [bank.name for bank in banks]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two banks are named {name!r}", hint="give each a name of its own")
    return banks
