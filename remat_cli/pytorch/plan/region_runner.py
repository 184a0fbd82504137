"""A region for calls of one size or many.

It is captured once, with symbols for sizes that differ, and run by plans for some of these sizes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.errors import UsageError
from remat_cli.pytorch.capture.capture_errors import CAPTURE_ERRORS, explanation
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.joint_capture import Captured, compiled
from remat_cli.pytorch.capture.outputs import OutputGradients
from remat_cli.pytorch.capture.piece import Piece
from remat_cli.pytorch.capture.sizes import Sizes, Values, without_inputs
from remat_cli.pytorch.plan.file_source import structure_fault
from remat_cli.pytorch.plan.fused import CompiledPasses, given_to
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.sized_fused import SizedKernels
from remat_cli.pytorch.programs.pieces import KnownPieces
from remat_cli.pytorch.programs.slots import Entry, PassFunctions, Slots, pass_functions
from remat_cli.pytorch.unstable.front_end import SeenSizes
from remat_cli.splitting import Split


@dataclass(frozen=True, eq=False)
class RegionPlan:
    """A plan of a region that can run at other sizes.

    Attributes:
        values: sizes of the plan.
        graph: graph of the region at these sizes.
        schedule: the plan.
        cuts: cuts of the graph.
    """

    values: Values
    graph: Graph
    schedule: Schedule
    cuts: Mapping[str, Split]


@dataclass(frozen=True)
class RegionHooks:
    """Functions that are called around the passes of regions.

    Attributes:
        forward_context: makes the context of a forward pass.
        at_forward: called at the beginning of a forward pass with all that it is given.
        at_backward: called at the beginning of a backward pass.
        on_mismatch: called with a region's name if it differs from the planned one, and runs by the plain schedule.
        on_larger: called with its name if it is larger than in the rehearsal.
    """

    forward_context: Callable[[], Any] = nullcontext
    at_forward: Callable[[list[Any]], None] = lambda given: None
    at_backward: Callable[[], None] = lambda: None
    on_mismatch: Callable[[str], None] = lambda name: None
    on_larger: Callable[[str], None] = lambda name: None


class RegionKernels:
    """Compiled kernels of regions' plans, for many sizes.

    Attributes:
        known: pieces compiled so far, for regions of eager's ops, in parts or not; None: inductor has decomposed them.
    """

    def __init__(self, sizes: Sizes, known: KnownPieces | None) -> None:
        """Begin with none.

        Args:
            sizes: the symbols of the regions' graph.
            known: see the attribute.
        """
        self.known = known
        self._sizes, self._kernels = sizes, SizedKernels(sizes, ())
        self._compiled: dict[tuple[RegionPlan, Values], CompiledPasses] = {}

    def __contains__(self, plan: RegionPlan) -> bool:
        """Return whether a plan is compiled."""
        return (plan, plan.values) in self._compiled

    def of(self, plan: RegionPlan, values: Values) -> CompiledPasses:
        """Return a plan's kernels for some sizes, if possible those for all sizes.

        Raises:
            GraphError: inductor does not compile the plan.
            UsageError: there is no compiler.
        """
        own = self._at(plan, plan.values)
        return own if self._kernels.hold_at(own, plan.values, values) else self._at(plan, values)

    def suit(self, sizes: Sizes, values: Values) -> bool:
        """Return whether the kernels run in another capture, by the layouts of its inputs."""
        return given_to(sizes.at(values).captured) == given_to(self._sizes.at(values).captured)

    def _at(self, plan: RegionPlan, values: Values) -> CompiledPasses:
        if (plan, values) not in self._compiled:
            planned = GraphRecord.of(plan.graph, plan.schedule)
            self._compiled[plan, values] = self._kernels.compiled(
                planned, self._sizes.at(values), plan.cuts, known=self.known
            )
        return self._compiled[plan, values]


class RegionRunner:
    """Runs regions of one capture.

    Attributes:
        name: name of the first region.
        hooks: called around their passes.
        kernels: compiles the plans; None: eager's kernels run.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        gradients: OutputGradients,
        seen: SeenSizes,
        hooks: RegionHooks,
        kernels: RegionKernels | None = None,
        *,
        takes_sizes: bool,
    ) -> None:
        """Begin with no plan.

        Args:
            name: name of the first region.
            function: forward function of the regions, which takes the module first.
            gradients: outputs with a gradient.
            seen: sizes that torch has seen in calls.
            hooks: called around their passes.
            kernels: compiles the plans; None: eager's kernels run.
            takes_sizes: sizes that have differed between calls are captured as symbols.
        """
        self.name, self.hooks, self.kernels = name, hooks, kernels
        self._run = compiled(
            function,
            self._divide,
            gradients=gradients,
            takes_sizes=takes_sizes,
            seen=seen.copy(),
            fused=kernels is not None and kernels.known is None,
        )
        self._asked: tuple[RegionPlan, Values] | None = None
        self._known = set[int]()  # modules that have been captured

    def run(
        self, plan: RegionPlan, most: Values, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a region.

        Args:
            plan: the plan.
            most: largest sizes whose memory is within the budget.
            module: the region.
            args: positional arguments.
            kwargs: keyword arguments.

        Raises:
            RematError: the region cannot be captured with these inputs.
        """
        self._asked = plan, most
        if id(module) in self._known:
            return self._run(module, *args, **kwargs)
        try:
            with warnings.catch_warnings():
                # torch.compile looks at the gradients of all inputs, those that other regions made among them.
                warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
                result = self._run(module, *args, **kwargs)
        except CAPTURE_ERRORS as error:
            raise explanation(error, f"region {self.name!r}") from None
        self._known.add(id(module))
        return result

    def asked(self) -> tuple[RegionPlan, Values]:
        """Return the next plan, and the largest sizes whose memory is within the budget."""
        assert self._asked is not None
        return self._asked

    def _divide(self, captured: Captured) -> tuple[fx.GraphModule, fx.GraphModule]:
        return _Runs(self, without_inputs(captured)).interface()


class _Runs:
    """A capture, run by plans."""

    def __init__(self, region: RegionRunner, given: Captured) -> None:
        self._region = region
        self._sizes = sizes = Sizes.of(given)
        self._first = sizes.at(sizes.first)
        self._slots = Slots(given, self._first.joint)
        self._functions: dict[RegionPlan, PassFunctions | None] = {}  # None: a plan of another graph
        self._plain: PassFunctions | None = None
        self._kernels = None if region.kernels is None else RegionKernels(sizes, region.kernels.known)
        self._numbers: dict[tuple[RegionPlan, Values], int] = {}
        self._fitting: dict[tuple[Values, Values], bool] = {}  # whether sizes need no more memory than others

    def interface(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        return self._slots.interface(self.run_forward, self.run_backward)

    def run_forward(self, args: list[Any]) -> tuple[Any, ...]:
        plan, most = self._region.asked()
        values = self._sizes.values(args)
        if plan not in self._functions:
            self._functions[plan] = self._functions_of(plan)
        number = self._numbers.get((plan, values))
        if number is None:
            runs = self._functions_at(plan, values)
            number = self._numbers[plan, values] = self._slots.add(Entry(runs, self._sizes.numbers(values)))
        if self._functions[plan] is None:
            self._region.hooks.on_mismatch(self._region.name)
        elif not self._fits(values, most):
            self._region.hooks.on_larger(self._region.name)
        self._region.hooks.at_forward(args)
        with self._region.hooks.forward_context():
            return self._slots.forward(number, args)

    def run_backward(self, args: list[Any]) -> Any:
        self._region.hooks.at_backward()
        return self._slots.backward(args)

    def _fits(self, values: Values, most: Values) -> bool:
        """Return whether no tensor is larger at some sizes than at others.

        Then no plan needs more memory there.
        """
        if values == most:
            return True
        if (values, most) not in self._fitting:
            here, there = self._sizes.bytes_at(self._first, values), self._sizes.bytes_at(self._first, most)
            self._fitting[values, most] = all(size <= there[name] for name, size in here.items())
        return self._fitting[values, most]

    def _functions_at(self, plan: RegionPlan, values: Values) -> PassFunctions:
        """Return the functions of a plan at some sizes, the plain run's for a plan of another graph."""
        runs = self._functions[plan]
        if runs is None:
            return self._plain_functions()
        if self._kernels is None:
            return runs
        kernels = self._kernels_of(plan)
        if (there := kernels.of(plan, values)) is kernels.of(plan, plan.values):
            return runs
        return there.functions(self._sizes.at(values).joint)

    def _kernels_of(self, plan: RegionPlan) -> RegionKernels:
        """Return the kernels that were compiled for the choice, if they run in this capture."""
        assert self._kernels is not None
        chosen = self._region.kernels
        is_chosen = chosen is not None and plan not in self._kernels and chosen.suit(self._sizes, plan.values)
        return chosen if chosen is not None and is_chosen else self._kernels

    def _functions_of(self, plan: RegionPlan) -> PassFunctions | None:
        if len(plan.values) != len(self._sizes.symbols):
            return None
        sized = self._sizes.at(plan.values)
        piece = Piece(sized.joint, sized.captured)
        with suppress(UsageError):  # then it is another graph
            piece = piece.in_parts(plan.cuts)
        structure = {op.name: op.signature or "" for op in plan.graph.ops}
        if structure_fault(graph_of(piece.joint, self._region.name), structure) is not None:
            return None
        if self._kernels is not None:
            return self._kernels_of(plan).of(plan, plan.values).functions(piece.joint)
        return pass_functions(piece.joint, plan.schedule)

    def _plain_functions(self) -> PassFunctions:
        if self._plain is None:
            joint = self._first.joint
            plan = RegionPlan(self._sizes.first, graph := graph_of(joint, self._region.name), plain_run(graph), {})
            if self._kernels is None:
                self._plain = pass_functions(joint, plan.schedule)
            else:
                self._plain = self._kernels.of(plan, plan.values).functions(joint)
        return self._plain
