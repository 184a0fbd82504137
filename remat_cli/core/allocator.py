"""The caching allocator that serves a plan: which one, with which settings, and what it reserves."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.errors import UsageError

_MIB = 1 << 20
# Sizes of blocks are multiples of this.
LEAST_BLOCK = 512
# As PyTorch demands: a block that may be split is at least as large as one that is shared.
_LEAST_SPLIT_MIB, _LARGEST_SPLIT_MIB = 21, 1 << 20
_EXAMPLE = "cuda, cuda:expandable_segments:True or cuda:max_split_size_mb:128"


@dataclass(frozen=True, slots=True)
class CudaAllocator:
    """Settings of PyTorch's caching allocator for CUDA, from PYTORCH_CUDA_ALLOC_CONF.

    Attributes:
        expandable_segments: one segment grows, in place of many of fixed size.
        max_split_size_mb: larger blocks are not split, in MiB; None: all are.
    """

    expandable_segments: bool = False
    max_split_size_mb: int | None = None

    @property
    def max_split_bytes(self) -> float:
        """Blocks of this size and above are not split."""
        return float("inf") if self.max_split_size_mb is None else self.max_split_size_mb * _MIB

    def __str__(self) -> str:
        """The allocator in the words of users."""
        said = [f"expandable_segments:{self.expandable_segments}"] if self.expandable_segments else []
        said += [] if self.max_split_size_mb is None else [f"max_split_size_mb:{self.max_split_size_mb}"]
        return "cuda" + (f":{','.join(said)}" if said else "")


@dataclass(frozen=True, slots=True)
class Reserved:
    """Device memory that an allocator takes for a plan.

    Attributes:
        allocator: that serves the plan.
        bytes: the most that it takes from the device, resident bytes included.
        plain_bytes: the same for the plain run.
    """

    allocator: CudaAllocator
    bytes: int
    plain_bytes: int


def rounded(size: int, step: int = LEAST_BLOCK) -> int:
    """Return a size rounded up to a multiple of a step, by default as the allocator does."""
    return -(-size // step) * step


def parse_allocator(text: str) -> CudaAllocator:
    """Return the allocator that "cuda:expandable_segments:True,max_split_size_mb:128" names.

    Raises:
        UsageError: it is not understood, or has a setting that is not modelled.
    """
    name, colon, conf = text.strip().partition(":")
    if name != "cuda" or (colon and not conf.strip()):
        raise UsageError(f"allocator {text!r} is not known", hint=f"give {_EXAMPLE}")
    expandable, most = False, None
    for part in conf.split(",") if colon else ():
        key, _, value = (piece.strip() for piece in part.partition(":"))
        if key == "expandable_segments":
            if value not in ("True", "False"):
                raise _wrong(text, key, value, "True or False")
            expandable = value == "True"
        elif key == "max_split_size_mb":
            fits = value.isascii() and value.isdecimal() and len(value) < 8
            if not fits or not _LEAST_SPLIT_MIB <= int(value) <= _LARGEST_SPLIT_MIB:
                raise _wrong(text, key, value, f"MiB, from {_LEAST_SPLIT_MIB} to {_LARGEST_SPLIT_MIB}")
            most = int(value)
        else:
            raise UsageError(
                f"allocator {text!r}: {key!r} is not modelled",
                hint="give expandable_segments and max_split_size_mb only, as in PYTORCH_CUDA_ALLOC_CONF",
            )
    return CudaAllocator(expandable, most)


def _wrong(text: str, key: str, value: str, wanted: str) -> UsageError:
    return UsageError(f"allocator {text!r}: {key} is {value!r}, not {wanted}", hint=f"give {_EXAMPLE}")
