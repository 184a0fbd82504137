"""A rehearsal of a step planned by regions.

It records the memory between regions, and the arguments of each.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from remat_cli.errors import UsageError
from remat_cli.pytorch.capture.live_storages import LiveStorages
from remat_cli.pytorch.capture.model_state import ModelState
from remat_cli.pytorch.capture.ops import tensors_of
from remat_cli.pytorch.capture.outputs import KnownGradients
from remat_cli.pytorch.memory.hosted import MovableInputs
from remat_cli.pytorch.plan.described import Described, DescribedShard, described
from remat_cli.pytorch.plan.rehearsed_updates import RehearsedUpdates
from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.autograd import current_node, next_number, number_of
from remat_cli.pytorch.unstable.dispatch import TorchDispatchMode
from remat_cli.pytorch.unstable.resizes import tell_no_more, tell_of_resizes
from remat_cli.pytorch.unstable.tensors import dense_parts, is_wrapper, local_part, storage_key, version_of


@dataclass(frozen=True, eq=False)
class RegionCall:
    """A call of a region in a step.

    Attributes:
        path: path of the region.
        name: the path, with a number for later calls in the step.
        module: the region.
        args: described positional arguments.
        kwargs: described keyword arguments.
        parameters: described whole parameters in the call, by name.
        device: kind of device.
        autocast: element type of autocast on that device, and whether it is on.
        gradients: outputs that can get a gradient: those on which the model's outputs depend.
    """

    path: str
    name: str
    module: nn.Module
    args: Any
    kwargs: Any
    parameters: Mapping[str, Described | DescribedShard]
    device: str
    autocast: tuple[torch.dtype, bool]
    gradients: KnownGradients

    @property
    def is_split(self) -> bool:
        """Whether any parameter or argument is split among ranks."""
        given = (*self.parameters.values(), *pytree.tree_leaves((self.args, self.kwargs)))
        return any(isinstance(value, DescribedShard) for value in given)


@dataclass(frozen=True)
class Moment:
    """A time in a step.

    Attributes:
        holding: numbers of the calls that keep tensors for their backward pass.
        running: number of the running call, and its pass; None between regions.
        is_backward: the moment is in the backward pass.
    """

    holding: frozenset[int]
    running: tuple[int, str] | None = None
    is_backward: bool = False


class RunsOnce(UsageError):
    """A region cannot run twice, as the rehearsal requires.

    Attributes:
        path: path of the region.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"regions: {path!r} does not do the same when it runs again with what it was given ({reason})",
            hint="leave it out of the regions; or let its forward pass depend on nothing but inputs, parameters and "
            "attributes",
        )
        self.path = path


class FillsCache(UsageError):
    """A region puts tensors into an object that it is given."""


# Under a mode, torch does not compile the call, and its own backward pass of one tensor ends with a TypeError.
_COND = "regions: torch.cond between them returns one tensor, whose gradient torch cannot take while ops are watched"
_COND_HINT = "leave regions out, so that the whole model is planned, torch.cond with it"


class Rehearsal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the memory between regions of a step.

    Memory from before the step does not count.

    Each region runs in `torch.utils.checkpoint` meanwhile.

    Attributes:
        calls: calls of regions, in their starting order.
        untrained: names of calls without any gradient.
        moments: peak at each moment, in order; for a pass of a region, the bytes at its beginning.
        hosted: bytes of each call's inputs that were on the host between its passes, by place.
        makers: numbers of the calls that produced each call's inputs, by place.
        kept: bytes outside of regions as the backward pass begins.
        lasting: inputs that outlived their region's forward pass: names of calls, and places.
        updates: the same moments, if parameters are updated in the backward pass.
    """

    supports_higher_order_operators = True

    def __init__(self, *, moves: bool = False, staying: Set[tuple[str, int]] = frozenset()) -> None:
        """Begin before the step.

        Args:
            moves: whether inputs of regions are on the host between their passes.
            staying: inputs that stay, by names of calls and places.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.hosted: list[dict[int, int]] = []
        self.makers: list[dict[int, int]] = []
        self._makers: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}  # of what is there, by storage
        self.lasting: set[tuple[str, int]] = set()
        self._moves, self._staying = moves, staying
        self.kept = 0
        self._left: list[dict[int, weakref.ref[torch.UntypedStorage]]] = []
        self.calls: list[RegionCall] = []
        self.untrained: set[str] = set()
        self.moments: dict[Moment, int] = {}
        self.updates = RehearsedUpdates[Moment]()
        self._numbers: list[tuple[int, int]] = []  # of autograd's nodes
        self._outputs: list[
            list[tuple[int, torch.dtype, int]]
        ] = []  # differentiable outputs, with their nodes' numbers
        self._times: dict[str, int] = {}
        self._storages = LiveStorages()
        self._open: int | None = None
        self._holding: frozenset[int] = frozenset()
        self._went_back: set[int] = set()
        self._ran_back: set[int] = set()
        self._is_backward = False
        self._ran_again = 0  # the number of the call that ran again last

    @property
    def level(self) -> int:
        """Bytes in memory now."""
        return self._storages.bytes

    def follow(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count earlier tensors that the step may free."""
        for tensor in tensors:
            self._storages.follow(local_part(tensor).untyped_storage())

    def runs_once(self, error: Exception) -> RunsOnce:
        """Return the error for a region with different second results."""
        return RunsOnce(self.calls[self._ran_again].path, str(error).strip().splitlines()[0])

    def begin_backward(self, returned: Iterable[torch.Tensor]) -> None:
        """Note that the backward pass begins.

        Args:
            returned: outputs of the model.
        """
        numbers = _nodes_behind(returned)
        for place, of_region in enumerate(self._outputs):
            outputs = tuple((dimensions, dtype, number in numbers) for dimensions, dtype, number in of_region)
            call = self.calls[place]
            self.calls[place] = replace(call, gradients=KnownGradients(call.gradients.of, outputs))
        self._look_what_lasts()
        self.kept = self.level
        self._is_backward = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Follow the results of an op."""
        kwargs = dict(kwargs or {})
        if any(map(is_wrapper, types)):
            return NotImplemented  # it is seen with the local tensors, and what the wrapper does with them
        if self._is_backward:
            self._look_where()
        result = func(*args, **kwargs)
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_one = func is torch.ops.higher_order.cond and isinstance(result, torch.Tensor)
        if is_one and any(leaf.requires_grad for leaf in given):
            raise UsageError(_COND, hint=_COND_HINT)
        read = {storage_key(part) for leaf in given for part in dense_parts(leaf)}
        for tensor in (part for leaf in tensors_of(result) for part in dense_parts(leaf)):
            key = storage_key(tensor)
            if key not in read and key not in self._storages:
                self._storages.follow(tensor.untyped_storage())
        if self._open is None:
            self._mark()
        return result

    def __enter__(self) -> Self:
        tell_of_resizes(self._storages.follow)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        tell_no_more(self._storages.follow)

    def _mark(self, running: tuple[int, str] | None = None) -> None:
        moment = Moment(self._holding, running, self._is_backward)
        if running is None:
            self.updates.run(moment, self.level)
        self.moments[moment] = max(self.moments.get(moment, 0), self.level)
        self.updates.note(moment, self.level)

    def gradient_arrived(self) -> None:
        """Note that a parameter's gradient is final."""
        if self._open is None:
            self._mark()

    def end_backward(self) -> None:
        """Note that the backward pass is over, and all gradients are there."""
        self._open = None
        self._mark()

    def _look_where(self) -> None:
        node = current_node()
        if node is None or "AccumulateGrad" in type(node).__name__ or "AccumulateGrad" in node.name():
            return
        number = number_of(node)
        place = next((at for at, (first, end) in enumerate(self._numbers) if first <= number < end), None)
        if place != self._open and place is not None:
            self._begin_back(place)
        self._open = place

    def _begin_back(self, place: int) -> None:
        if place not in self._went_back:
            self._went_back.add(place)
            if self._is_backward:
                self._mark()  # updates of the region before
            self._holding -= {place}
            self._mark((place, "backward"))

    @contextlib.contextmanager
    def _again(self, place: int) -> Iterator[None]:
        if place in self._ran_back:
            raise UsageError(
                f"regions: {self.calls[place].path!r} is differentiated more than once in a step, as by a gradient "
                "penalty within the model's forward pass, and a plan has one backward pass of each region",
                hint="leave it out of the regions; or let the model return what the penalty is computed from, and call "
                "torch.autograd.grad outside of it: eager runs that backward pass",
            )
        self._ran_back.add(place)
        before, was_backward = self._open, self._is_backward
        self._is_backward, self._ran_again = True, place
        self._begin_back(place)
        self._mark((place, "backward"))  # now with the parameters that FSDP2 has gathered for it
        self._open, self._is_backward = place, False
        try:
            yield
        finally:
            self._open, self._is_backward = before if before == place else place, was_backward

    def call(self, path: str, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a region in a checkpoint, if it needs a gradient.

        Raises:
            UsageError: the region is called in the backward pass, its parameters are sharded in the call, or it changes
                an argument.
        """
        if self._is_backward:
            raise UsageError(
                f"regions: {path!r} is in a checkpoint of the model's own, which runs it again in the backward pass",
                hint="switch that off, as by model.gradient_checkpointing_disable(): what is made again is up to the "
                "plan",
            )
        times = self._times[path] = self._times.get(path, 0) + 1
        name = named_call(path, times)
        tensors = (*module.parameters(), *pytree.tree_leaves((args, kwargs)))
        if not any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors):
            self.untrained.add(name)
            return forward(*args, **kwargs)
        device = next((part.device.type for part in module.parameters()), "cpu")
        given, named = pytree.tree_map(described, (args, kwargs))
        cast = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        place = len(self.calls)
        parameters = {part: described(value) for part, value in module.named_parameters()}
        gradients = KnownGradients(f"region {path!r}", ())
        self.calls.append(RegionCall(path, name, module, given, named, parameters, device, cast, gradients))
        self._mark((place, "forward"))
        self._open = place
        first = next_number()
        objects = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if hasattr(leaf, "__dict__")]
        held = [_tensors_held(thing) for thing in objects]
        inputs = MovableInputs(args, kwargs) if self._moves else None
        self.makers.append(
            {
                at: maker
                for at, leaf in enumerate(pytree.tree_leaves((args, kwargs)))
                if (maker := self._maker(leaf)) is not None
            }
        )
        versions = _versions(args, kwargs)
        is_cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a planned region casts its weights itself, and lets go of them
        try:
            result = checkpointed(path, module, forward, args, kwargs, lambda: self._again(place), inputs)
        finally:
            self._open = None
            torch.set_autocast_cache_enabled(is_cached)
        for thing, before in zip(objects, held, strict=True):
            if not isinstance(thing, torch.Tensor | nn.Module) and _tensors_held(thing) != before:
                raise FillsCache(
                    f"regions: {path!r} puts tensors into a {type(thing).__name__} that it is given, and no plan knows "
                    "of them",
                    hint="give it none in training: of a cache of keys and values, model.config.use_cache = False",
                )
        self._numbers.append((first, next_number()))
        self._outputs.append(
            [
                (leaf.dim(), leaf.dtype, number_of(leaf.grad_fn))
                for leaf in pytree.tree_leaves(result)
                if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None
            ]
        )
        self._holding |= {place}
        self._mark()
        if inputs is not None:
            self._look_what_lasts()
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self._makers[storage_key(leaf)] = weakref.ref(leaf.untyped_storage()), place
            changed = [before != now for before, now in zip(versions, _versions(args, kwargs), strict=True)]
            parts = {storage_key(part) for part in (*module.parameters(), *module.buffers())}
            memory = inputs.leave(
                lambda at, value: (name, at) in self._staying or changed[at] or storage_key(value) in parts
            )
            self._left.append({at: weakref.ref(storage) for at, storage in memory.items()})
            self.hosted.append({at: storage.nbytes() for at, storage in memory.items()})
        return result

    def _maker(self, value: Any) -> int | None:
        """Return the number of the call that produced a tensor, or None."""
        if not isinstance(value, torch.Tensor) or is_wrapper(type(value)):
            return None
        storage, maker = self._makers.get(storage_key(value), (lambda: None, 0))
        return None if storage() is None else maker

    def _look_what_lasts(self) -> None:
        """Note the inputs of the last call that are still alive."""
        if self._left:
            name = self.calls[len(self._left) - 1].name
            self.lasting |= {(name, at) for at, storage in self._left[-1].items() if storage() is not None}


def _nodes_behind(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return the numbers of autograd's nodes behind tensors."""
    ahead = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    numbers = set[int]()
    while ahead:
        node = ahead.pop()
        if (number := number_of(node)) not in numbers:
            numbers.add(number)
            ahead += [following for following, _ in node.next_functions if following is not None]
    return numbers


def _tensors_held(value: Any, depth: int = 4) -> frozenset[int]:
    """Return the identities of tensors inside an object.

    They are in its attributes, and in lists and dicts there.
    """
    if isinstance(value, torch.Tensor):
        return frozenset({id(value)})
    if isinstance(value, Mapping):
        parts: Any = value.values()
    else:
        parts = value if isinstance(value, list | tuple) else getattr(value, "__dict__", {}).values()
    return frozenset().union(*(_tensors_held(part, depth - 1) for part in parts)) if depth else frozenset()


def checkpointed(
    path: str,
    module: nn.Module,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    rerun_context: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    inputs: MovableInputs | None = None,
) -> Any:
    """Run a module in a checkpoint.

    Its second run begins with the attributes and lists of the first.

    Args:
        path: path of the module, for messages.
        module: the module.
        forward: the module's forward function.
        args: positional arguments.
        kwargs: keyword arguments.
        rerun_context: context of the second run.
        inputs: holder of the arguments, if they may leave for the host in between.

    Raises:
        RunsOnce: the second run fails, in the backward pass.
    """
    state = ModelState([module], values=False)
    given, first = inputs or MovableInputs(args, kwargs), [(args, kwargs)]
    device = next((part.device for part in module.parameters()), torch.device("cpu"))

    def run(_: torch.Tensor) -> Any:
        if first:
            args, kwargs = first.pop()
            return forward(*args, **kwargs)
        now = ModelState([module], values=False)
        state.restore()
        args, kwargs = given()
        try:
            return forward(*args, **kwargs)
        except Exception as error:
            if type(error).__module__.startswith("torch.utils.checkpoint"):  # it has all that it needs by now
                raise
            raise RunsOnce(path, f"{type(error).__name__}: {error}") from error
        finally:
            now.restore()

    # Torch is given a tensor that tells the device, and nothing that may leave.
    tells = torch.empty(0, device=device)
    return checkpoint(
        run, tells, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), _MadeAnew(rerun_context))
    )


class _MadeAnew:
    """A context that is made anew at each entry: each backward pass through a checkpoint runs it again."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._make = make
        self._entered: list[contextlib.AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        self._entered.append(self._make())
        self._entered[-1].__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.pop().__exit__(*error)


def _versions(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int]:
    """Return the number of in-place changes of each input tensor."""
    return [version_of(leaf) if isinstance(leaf, torch.Tensor) else 0 for leaf in pytree.tree_leaves((args, kwargs))]


def named_call(path: str, times: int) -> str:
    """Return the name of a region's call by its number in the step."""
    return path if times == 1 else f"{path}, call {times}"
