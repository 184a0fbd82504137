"""A choice of modules as code to paste, and as other trainers' settings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from remat_cli.pytorch.checkpoints.candidates import Candidates
from remat_cli.pytorch.checkpoints.policy_memory import Call, Policy, PolicyMemory

_WIDTH = 76  # width of lines of code, if names are short enough
# Megatron's names for parts of a layer, if a model may have parts of the same names.
_MEGATRON_MODULES = ("core_attn", "mlp", "moe", "shared_experts")


@dataclass(frozen=True)
class TrainerSetting:
    """The choice of modules by a trainer's setting.

    Attributes:
        trainer: name of the trainer.
        setting: text of the setting in the trainer.
        paths: paths of the wrapped modules.
        peak: peak of the step with this setting, in bytes.
        time: time of the ops that run again.
    """

    trainer: str
    setting: str
    paths: tuple[str, ...]
    peak: int
    time: int


def code(paths: Sequence[str]) -> str:
    """Return lines of Python that wrap these modules; `model` is theirs."""
    return f"""\
from functools import partial
from torch.utils.checkpoint import checkpoint

names = [
{_listed(paths, 4)}
]
for name in names:
    module = model.get_submodule(name)
    module.forward = partial(checkpoint, module.forward, use_reentrant=False)
"""


def policy_code(policy: Policy) -> str:
    """Return lines of Python that wrap the blocks of a policy in `model`."""
    kinds = "".join(f"    {_quoted(kind)}: {_saved(policy.saved[kind])},\n" for kind in policy.blocks)
    names = "".join(f"    {_quoted(kind)}: [\n{_listed(paths, 8)}\n    ],\n" for kind, paths in policy.blocks.items())
    return f"""\
from collections import Counter
from functools import partial
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

# For each kind of block, which calls of which ops are saved, from 0.
saved = {{
{kinds}}}
names = {{
{names}}}

def contexts(kind):
    calls = Counter()

    def policy(ctx, op, *args, **kwargs):
        call = calls[ctx.is_recompute, op]
        calls[ctx.is_recompute, op] += 1
        if call in saved[kind].get(op, ()):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)

for kind, paths in names.items():
    run = partial(checkpoint, use_reentrant=False, context_fn=partial(contexts, kind))
    for path in paths:
        module = model.get_submodule(path)
        module.forward = partial(run, module.forward)
"""


def _saved(calls: Collection[Call]) -> str:
    if not calls:
        return "{}"
    lines = (
        f"        torch.ops.{function}: {{{', '.join(map(str, sorted(turns)))}}},\n"
        for function, turns in sorted(saved_turns(calls).items())
    )
    return f"{{\n{''.join(lines)}    }}"


def saved_turns(calls: Collection[Call]) -> dict[str, set[int]]:
    """Return the turns of calls by function."""
    turns: dict[str, set[int]] = {}
    for function, turn in calls:
        turns.setdefault(function, set()).add(turn)
    return turns


def _listed(paths: Sequence[str], indent: int) -> str:
    """Return names in quotes, in lines."""
    lines = [""]
    for path in paths:
        item = f" {_quoted(path)},"
        if lines[-1] and len(lines[-1]) + len(item) > _WIDTH + 4 - indent:
            lines.append("")
        lines[-1] += item
    return "\n".join(" " * (indent - 1) + line for line in lines)


def _quoted(path: str) -> str:
    return f'"{path}"' if path.isprintable() and path.isascii() and not set(path) & set('"\\') else ascii(path)


def settings(candidates: Candidates, budget: int) -> tuple[TrainerSetting, ...]:
    """Return trainers' settings within a budget.

    Of each kind this is the setting that reruns least.

    The blocks are the largest group of neighbouring modules of one class. transformers wraps the blocks 0, N, 2N
    (`every_n_layers=N`); Megatron-LM the first N (`recompute_method="block"`), or parts of all blocks
    (`recompute_modules`).

    Args:
        candidates: modules of the step that may be wrapped.
        budget: budget in bytes.
    """
    blocks, memory = _blocks(candidates), PolicyMemory(candidates, saves=False)
    kinds = (_every_nth(blocks), _first(blocks), _parts(candidates, blocks)) if blocks else ()
    reaching = []
    for kind in kinds:
        for trainer, setting, paths in kind:
            policy = memory.wrapping(paths)
            peak = memory.peak(policy)
            if peak <= budget:
                reaching.append(TrainerSetting(trainer, setting, paths, peak, memory.time(policy)))
                break
    return tuple(reaching)


def _blocks(candidates: Candidates) -> tuple[str, ...]:
    """Return the largest group of blocks that may all be wrapped."""
    broken = {path.rpartition(".")[0] for path in candidates.left_out if path.rpartition(".")[2].isdecimal()}
    groups: dict[tuple[str, str], list[str]] = {}
    for item in candidates.candidates:
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


def _parts(candidates: Candidates, blocks: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the parts of blocks that Megatron has a name for.

    Every block must have the part. Parts that rerun least come first.
    """
    parts = []
    for name in _MEGATRON_MODULES:
        paths = tuple(f"{block}.{name}" for block in blocks)
        if all(path in candidates.by_path for path in paths):
            setting = f"recompute_granularity=selective, recompute_modules=[{name}]"
            parts.append((sum(candidates.by_path[path].time for path in paths), setting, paths))
    for _, setting, paths in sorted(parts):
        yield "Megatron-LM", setting, paths
