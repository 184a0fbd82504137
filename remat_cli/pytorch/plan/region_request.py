"""A request to plan a model by regions: what a user asked for, and who trains the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from remat_cli.pytorch.memory.live import bytes_in
from remat_cli.pytorch.memory.shards import Ranks, parameters_at_rest
from remat_cli.pytorch.plan.budget_source import BudgetSource
from remat_cli.pytorch.plan.given_blocks import GivenBlocks
from remat_cli.pytorch.unstable.tensors import local_part, storage_key
from remat_cli.training.resident import OPTIMIZERS


@dataclass(eq=False)
class RegionRequest:
    """The request of a user.

    Attributes:
        module: the model.
        regions: the regions by path.
        asked: source of plans as requested.
        given: plans from a file, which are run in place of new ones; None without a file.
        source: source of plans for one region, without transfers while a region runs.
        ranks: processes that train the model together.
        forwards: the regions' own forward methods, by path.
    """

    module: nn.Module
    regions: Mapping[str, nn.Module]
    asked: BudgetSource
    given: GivenBlocks | None = None
    source: BudgetSource = field(init=False)
    ranks: Ranks = field(default_factory=Ranks)
    forwards: Mapping[str, Callable[..., Any]] = field(init=False)

    def __post_init__(self) -> None:
        # What further calls keep is counted for the whole step, not for each region.
        self.source = replace(self.asked.for_regions(), request=replace(self.asked.request, offload=False), calls=1)
        self.forwards = {path: part.forward for path, part in self.regions.items()}

    @property
    def may_split(self) -> bool:
        """Whether regions may run in parts."""
        return self.source.splits or (self.given is not None and self.given.has_parts)

    @property
    def is_decomposed(self) -> bool:
        """Whether regions are captured as inductor decomposes them; parts are found among eager's ops."""
        return self.source.fused and not self.may_split

    @property
    def device(self) -> str:
        """The kind of device of the model."""
        return next((part.device.type for part in self.module.parameters()), "cpu")

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that get gradients."""
        return [part for part in parameters_at_rest(self.module) if part.requires_grad]

    def state_bytes(self) -> int:
        """Return the bytes of the optimizer's state, and of gradients that are added to.

        Without an optimizer's name, a file's bytes count.
        """
        options = self.source.graph_options
        trained = self.trained
        state = OPTIMIZERS[options.optimizer or "sgd"]
        distinct = {storage_key(part): part for part in map(local_part, trained)}.values()
        named = sum(state(tuple(part.shape), part.untyped_storage().nbytes()) for part in distinct)
        counted = named + options.accumulate * bytes_in(trained) + self.source.state_bytes()
        return counted if counted or self.given is None else self.given.file.other_bytes
