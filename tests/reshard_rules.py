"""Rules in use for training with sharded parameters, as schedules: what to gather again, and what to make again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from remat_cli.core.graph import Graph, Op, Phase
from remat_cli.core.schedule import Schedule, with_frees
from remat_cli.core.simulate import simulate


@dataclass(frozen=True, eq=False)
class Rules:
    """Schedules of a sharded training step by the rules of others; the layers are those of a generated Llama.

    Attributes:
        graph: of one rank.
    """

    graph: Graph

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The layers, in the order in which their parameters are gathered."""
        gathers = (op.name.removesuffix(".all_gather") for op in self.graph.ops if op.type == "AllGather")
        return tuple(name for name in gathers if name.startswith("layer"))

    def schedule(self, kept: Iterable[str], *, checkpoints: bool) -> Schedule:
        """Return the step in which these layers' parameters stay, and the others' are gathered again for the backward.

        The parameters outside of the layers stay, as FSDP's root module keeps them.

        Args:
            kept: layers.
            checkpoints: each layer's activations are made again from its input, as far as its backward reads them.
        """
        ops = self.graph.ops
        kept = set(kept)
        computes = [op.name for op in ops if op.phase is Phase.FORWARD]
        begun: set[str] = set()
        for op in ops:
            if op.phase is Phase.FORWARD:
                continue
            layer = op.name.split(".")[0] if op.grad_of is not None else ""
            if layer in self.layers and layer not in begun:
                begun.add(layer)
                again = self._read_again(layer) if checkpoints else ()
                computes += [f"{layer}.all_gather"] if layer not in kept else []
                computes += [again_op.name for again_op in again]
            computes.append(op.name)
        return with_frees(self.graph, computes)

    def _read_again(self, layer: str) -> tuple[Op, ...]:
        """Return the forward ops of a layer, up to the last one of which its backward reads something."""
        own = [op for op in self.graph.ops if op.phase is Phase.FORWARD and op.name.startswith(f"{layer}.")]
        own = [op for op in own if op.type != "AllGather"]
        read = {name for op in self.graph.ops if op.phase is Phase.BACKWARD for name in op.inputs}
        last = max(place for place, op in enumerate(own) if not read.isdisjoint(op.outputs))
        return tuple(own[: last + 1])

    def greedy(self, budget_bytes: int, *, checkpoints: bool) -> Schedule:
        """Return DeepCompile's choice: keep what takes longest to gather, a byte, as long as there is room.

        Source: Tanaka et al., DeepCompile, 2025, section 4.3 (selective unsharding).
        """
        graph = self.graph

        def time_a_byte(layer: str) -> float:
            return graph.op[f"{layer}.all_gather"].time / graph.tensors[f"{layer}.gathered"].bytes

        kept: list[str] = []
        found = self.schedule(kept, checkpoints=checkpoints)
        for layer in sorted(self.layers, key=time_a_byte, reverse=True):
            tried = self.schedule([*kept, layer], checkpoints=checkpoints)
            if simulate(graph, tried).peak_bytes <= budget_bytes:
                kept.append(layer)
                found = tried
        return found

    def all(self) -> Iterator[tuple[str, Schedule]]:
        """Yield every rule with its schedule; the greedy choice half-way between resharding always and never."""
        for what, checkpoints in (("", False), (", checkpoints", True)):
            always = self.schedule((), checkpoints=checkpoints)
            never = self.schedule(self.layers, checkpoints=checkpoints)
            peaks = [simulate(self.graph, schedule).peak_bytes for schedule in (always, never)]
            yield f"reshard always{what}", always
            yield f"greedy, half-way{what}", self.greedy(sum(peaks) // 2, checkpoints=checkpoints)
            yield f"reshard never{what}", never
