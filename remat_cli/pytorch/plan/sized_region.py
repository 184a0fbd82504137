"""A region for calls of many sizes.

It is captured once, with symbols, and run by plans for some of these sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Schedule, plain_run
from remat_cli.pytorch.capture.convert import graph_of
from remat_cli.pytorch.capture.joint import Joint
from remat_cli.pytorch.capture.joint_capture import Captured, boxed_backward, compiled, leaving_out, run_by
from remat_cli.pytorch.capture.outputs import OutputGradients
from remat_cli.pytorch.capture.sizes import Sizes, Values, without_inputs
from remat_cli.pytorch.plan.file_source import structure_fault
from remat_cli.pytorch.plan.fused import CompiledPasses, compiled_plan, given_to
from remat_cli.pytorch.plan.record import GraphRecord
from remat_cli.pytorch.plan.sized_fused import SizedKernels
from remat_cli.pytorch.programs.program import divided
from remat_cli.pytorch.programs.slots import Entry, PassFunctions, Slots, pass_functions
from remat_cli.pytorch.unstable.front_end import SeenSizes
from remat_cli.pytorch.unstable.joint_graphs import boxed


@dataclass(frozen=True, eq=False)
class SizedSchedule:
    """A plan of a region that can run at other sizes.

    Attributes:
        values: sizes of the plan.
        graph: graph of the region at these sizes.
        schedule: the plan.
    """

    values: Values
    graph: Graph
    schedule: Schedule


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
    """Compiled kernels of regions' plans, for many sizes."""

    def __init__(self, sizes: Sizes) -> None:
        """Begin with none.

        Args:
            sizes: the symbols of the regions' graph.
        """
        self._sizes, self._kernels = sizes, SizedKernels(sizes, ())
        self._compiled: dict[tuple[SizedSchedule, Values], CompiledPasses] = {}

    def __contains__(self, plan: SizedSchedule) -> bool:
        """Return whether a plan is compiled."""
        return (plan, plan.values) in self._compiled

    def of(self, plan: SizedSchedule, values: Values) -> CompiledPasses:
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

    def _at(self, plan: SizedSchedule, values: Values) -> CompiledPasses:
        if (plan, values) not in self._compiled:
            planned = GraphRecord.of(plan.graph, plan.schedule)
            self._compiled[plan, values] = self._kernels.compiled(planned, self._sizes.at(values))
        return self._compiled[plan, values]


class SizedRegion:
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
    ) -> None:
        """Begin with no plan.

        Args:
            name: name of the first region.
            function: forward function of the regions, which takes the module first.
            gradients: outputs with a gradient.
            seen: sizes that torch has seen in calls.
            hooks: called around their passes.
            kernels: compiles the plans; None: eager's kernels run.
        """
        self.name, self.hooks, self.kernels = name, hooks, kernels
        self._run = compiled(
            function,
            self._divide,
            gradients=gradients,
            takes_sizes=True,
            seen=seen.copy(),
            fused=kernels is not None,
        )
        self._asked: tuple[SizedSchedule, Values] | None = None

    def run(
        self, plan: SizedSchedule, most: Values, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a region.

        Args:
            plan: the plan.
            most: largest sizes whose memory is within the budget.
            module: the region.
            args: positional arguments.
            kwargs: keyword arguments.
        """
        self._asked = plan, most
        return self._run(module, *args, **kwargs)

    def asked(self) -> tuple[SizedSchedule, Values]:
        """Return the next plan, and the largest sizes whose memory is within the budget."""
        assert self._asked is not None
        return self._asked

    def _divide(self, captured: Captured) -> tuple[fx.GraphModule, fx.GraphModule]:
        captured = without_inputs(captured)
        sizes = Sizes.of(captured)
        if sizes.symbols:
            runs = _Runs(self, sizes, captured)
            return runs.interface()
        joint = Joint.of(captured)
        graph = graph_of(joint, self.name)
        forward, backward = divided(joint, plain_run(graph))
        run, run_back = boxed(forward), boxed_backward(backward)
        if self.kernels is not None:
            fused = compiled_plan(joint, GraphRecord.of(graph, plain_run(graph)), captured.forward_outputs)
            run, run_back = fused.forward.run, leaving_out(backward, fused.backward.run)
        watch_runs(self.hooks, self.name, (forward, run), (backward, run_back), is_planned=False)
        return forward, backward


_Pass = tuple[fx.GraphModule, Callable[[list[Any]], Any]]


def watch_runs(hooks: RegionHooks, name: str, forward: _Pass, backward: _Pass, *, is_planned: bool) -> None:
    """Have torch run a region's two passes between hooks.

    Args:
        hooks: the hooks.
        name: name of the region.
        forward: the graph of the forward pass, and the function that runs it.
        backward: the same of the backward pass.
        is_planned: the passes are those of a plan, not of the plain schedule.
    """
    run, run_back = forward[1], backward[1]

    def noted(args: list[Any]) -> Any:
        if not is_planned:
            hooks.on_mismatch(name)
        hooks.at_forward(args)
        with hooks.forward_context():
            return run(args)

    def noted_back(args: list[Any]) -> Any:
        hooks.at_backward()
        return run_back(args)

    run_by(forward[0], noted)
    run_by(backward[0], noted_back)


class _Runs:
    """A capture with symbols, run by plans."""

    def __init__(self, region: SizedRegion, sizes: Sizes, given: Captured) -> None:
        self._region = region
        self._sizes = sizes
        self._first = sizes.at(sizes.first)
        self._slots = Slots(given, self._first.joint)
        self._functions: dict[SizedSchedule, PassFunctions | None] = {}  # None: a plan of another graph
        self._plain: PassFunctions | None = None
        self._kernels = None if region.kernels is None else RegionKernels(sizes)
        self._numbers: dict[tuple[SizedSchedule, Values], int] = {}
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

    def _functions_at(self, plan: SizedSchedule, values: Values) -> PassFunctions:
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

    def _kernels_of(self, plan: SizedSchedule) -> RegionKernels:
        """Return the kernels that were compiled for the choice, if they run in this capture."""
        assert self._kernels is not None
        chosen = self._region.kernels
        is_chosen = chosen is not None and plan not in self._kernels and chosen.suit(self._sizes, plan.values)
        return chosen if chosen is not None and is_chosen else self._kernels

    def _functions_of(self, plan: SizedSchedule) -> PassFunctions | None:
        if len(plan.values) != len(self._sizes.symbols):
            return None
        sized = self._first if plan.values == self._sizes.first else self._sizes.at(plan.values)
        structure = {op.name: op.signature or "" for op in plan.graph.ops}
        if structure_fault(graph_of(sized.joint, self._region.name), structure) is not None:
            return None
        if self._kernels is not None:
            return self._kernels_of(plan).of(plan, plan.values).functions(sized.joint)
        return pass_functions(sized.joint, plan.schedule)

    def _plain_functions(self) -> PassFunctions:
        if self._plain is None:
            joint = self._first.joint
            plan = SizedSchedule(self._sizes.first, graph := graph_of(joint, self._region.name), plain_run(graph))
            if self._kernels is None:
                self._plain = pass_functions(joint, plan.schedule)
            else:
                self._plain = self._kernels.of(plan, plan.values).functions(joint)
        return self._plain
