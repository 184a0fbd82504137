"""A choice of modules as code that people paste, and choices that a setting of another trainer can make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remat_cli.pytorch.checkpoints.memory import Memory

_WIDTH = 76  # of lines of code, as far as names allow
# What Megatron calls parts of a layer, of those that a model may have under the same names.
_MEGATRON_MODULES = ("core_attn", "mlp", "moe", "shared_experts")


@dataclass(frozen=True)
class TrainerSetting:
    """A choice that a setting of a trainer makes.

    Attributes:
        trainer: whose setting it is.
        setting: as it is written there.
        paths: the modules that it wraps.
        peak: of the step with it, in bytes.
        time: of what runs again.
    """

    trainer: str
    setting: str
    paths: tuple[str, ...]
    peak: int
    time: int


def code(paths: Sequence[str]) -> str:
    """Return lines of Python that wrap these modules; `model` is theirs."""
    lines = [""]
    for path in paths:
        item = f" {_quoted(path)},"
        if lines[-1] and len(lines[-1]) + len(item) > _WIDTH:
            lines.append("")
        lines[-1] += item
    names = "\n".join(f"   {line}" for line in lines)
    return f"""\
from functools import partial
from torch.utils.checkpoint import checkpoint

names = [
{names}
]
for name in names:
    module = model.get_submodule(name)
    module.forward = partial(checkpoint, module.forward, use_reentrant=False)
"""


def _quoted(path: str) -> str:
    return f'"{path}"' if path.isprintable() and path.isascii() and not set(path) & set('"\\') else ascii(path)


def settings(memory: Memory, budget: int) -> tuple[TrainerSetting, ...]:
    """Return the settings of other trainers that keep within a budget, of each kind the one that runs least again.

    The blocks are the largest group of modules of one class beside each other. transformers wraps the blocks 0, N, 2N
    (`every_n_layers=N`); Megatron-LM the first N (`recompute_method="block"`), or parts of all blocks
    (`recompute_modules`).

    Args:
        memory: of the step.
        budget: in bytes.
    """
    blocks = _blocks(memory)
    kinds = (_every_nth(blocks), _first(blocks), _parts(memory, blocks)) if blocks else ()
    found = []
    for kind in kinds:
        for trainer, setting, paths in kind:
            peak = memory.peak(paths)
            if peak <= budget:
                time = sum(memory.by_path[path].time for path in paths)
                found.append(TrainerSetting(trainer, setting, paths, peak, time))
                break
    return tuple(found)


def _blocks(memory: Memory) -> tuple[str, ...]:
    """Return the largest group of blocks that all may be wrapped."""
    broken = {path.rpartition(".")[0] for path in memory.left_out if path.rpartition(".")[2].isdecimal()}
    groups: dict[tuple[str, str], list[str]] = {}
    for item in memory.candidates:
        parent, _, last = item.path.rpartition(".")
        if last.isdecimal() and parent not in broken:
            groups.setdefault((parent, item.kind), []).append(item.path)
    most = max(groups.values(), key=len, default=[])
    return tuple(most) if len(most) > 1 else ()


def _every_nth(blocks: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for step in range(len(blocks), 0, -1):
        yield "transformers", f"gradient_checkpointing_enable(every_n_layers={step})", tuple(blocks[::step])


def _first(blocks: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for count in range(1, len(blocks) + 1):
        setting = f"recompute_granularity=full, recompute_method=block, recompute_num_layers={count}"
        yield "Megatron-LM", setting, tuple(blocks[:count])


def _parts(memory: Memory, blocks: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Give the parts that Megatron has a name for, where every block has one, those that run least again first."""
    found = []
    for name in _MEGATRON_MODULES:
        paths = tuple(f"{block}.{name}" for block in blocks)
        if all(path in memory.by_path for path in paths):
            setting = f"recompute_granularity=selective, recompute_modules=[{name}]"
            found.append((sum(memory.by_path[path].time for path in paths), setting, paths))
    for _, setting, paths in sorted(found):
        yield "Megatron-LM", setting, paths
