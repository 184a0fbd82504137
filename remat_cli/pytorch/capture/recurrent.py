"""Recurrent layers as ops of their own: `remat::recurrent` and `remat::recurrent_backward`, around eager's layers.

Written out step by step, a layer is thousands of small ops, each started by Python. As one op it runs with eager's
kernels, at eager's speed and with eager's bits, and a plan keeps or recomputes it as a whole. Without it, an LSTM of
two layers over 64 steps is 3,988 ops instead of 24: its first step takes 18.8 s of CPU time instead of 8.2 s, later
ones 1.3 times as long, and gradients have other bits than eager's.

The tensors that autograd saves inside a layer are its *reserve*, in cuDNN's term: one result of the forward op, and an
operand of the backward op. The reserve is an empty tensor that holds eager's saved tensors without a copy. If a plan
moves it to the host, `remat::recurrent_flat` copies the saved tensors into one block of bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef

from remat_cli.pytorch.unstable import pytree
from remat_cli.pytorch.unstable.dispatch import autograd_inside_ops, without_onednn
from remat_cli.pytorch.unstable.tensors import key_of, storage_key

# torch's function for a layer, by the last part of its name.
_LAYERS: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
}
_ALIGNMENT = 64
# A layer is tried on zeros to see what it saves: as many steps of the sequence as stay below this many bytes of gates.
_MOST_TRIED_BYTES = 1 << 24
# oneDNN rounds each part of its workspace up to pages, so that the bytes of a step are known to a few pages only.
_SLACK_BYTES = 8 << 12

Values = tuple[torch.Tensor, ...]


def as_ops(graph: fx.Graph) -> None:
    """Have the recurrent layers of a module, as torch's front end makes it, traced as ops of their own.

    Under autocast they are written out step by step: there, each of their steps chooses its own element type.
    """
    for node in graph.nodes:
        if getattr(node.target, "__name__", "") in _LAYERS:
            node.target = _by_layers(node.target.__name__)


def _by_layers(kind: str) -> Callable[..., Any]:
    """Return a function that runs layer by layer.

    Dropout between layers is drawn as in eager mode.
    """

    def traced(
        x: Any, states: Any, weights: Any, biases: Any, layers: Any, dropout: Any, train: Any, *form: Any
    ) -> Any:
        if len(form) != 2:  # a packed sequence has another form, which torch itself refuses
            return _LAYERS[kind](x, states, weights, biases, layers, dropout, train, *form)
        bidirectional, batch_first = form
        directions, each = 1 + bidirectional, len(weights) // layers
        x = x.transpose(0, 1) if batch_first else x  # dropout draws in this order
        last = []
        for layer in range(layers):
            own = pytree.tree_map(lambda state, of=layer * directions: state[of : of + directions], states)
            of_layer = weights[layer * each : (layer + 1) * each]
            x, *final = _one_layer(kind, x, own, of_layer, biases, bidirectional)
            last.append(final)
            x = nn.functional.dropout(x, dropout) if dropout and train and layer < layers - 1 else x
        ends = [parts[0] if layers == 1 else torch.cat(parts) for parts in zip(*last, strict=True)]
        return x.transpose(0, 1) if batch_first else x, *ends

    return traced


def _one_layer(kind: str, x: Any, states: Any, weights: Any, biases: bool, bidirectional: bool) -> tuple[Any, ...]:
    own = (states,) if isinstance(states, torch.Tensor) else tuple(states)
    if torch.is_autocast_enabled(x.device.type):
        with without_onednn():  # torch's own capture of oneDNN's fused layer leaves out what its backward needs
            return tuple(_LAYERS[kind](x, states, weights, biases, 1, 0.0, True, bidirectional, False))
    # Copies that eager's kernels would make inside, were they not made before.
    results = torch.ops.remat.recurrent(kind, x.contiguous(), own, list(weights), biases, bidirectional)
    return tuple(results[:-1])


@dataclass(frozen=True)
class LayerForm:
    """The facts that fix a layer's kernels and their saved tensors.

    Attributes:
        kind: torch's function for it.
        device: kind of device.
        layouts: element type and shape of the input [steps, batch, features], the states, and the weights.
        states: how many of these are states.
        biases: the layer adds biases.
        bidirectional: the layer reads its input in both directions.
    """

    kind: str
    device: torch.device
    layouts: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    states: int
    biases: bool
    bidirectional: bool

    @property
    def steps(self) -> int:
        """Length of the sequence."""
        return self.layouts[0][1][0]

    def of_steps(self, steps: int) -> LayerForm:
        """Return the form of the same layer on a sequence of another length."""
        dtype, shape = self.layouts[0]
        layouts = ((dtype, (steps, *shape[1:])), *self.layouts[1:])
        return LayerForm(self.kind, self.device, layouts, self.states, self.biases, self.bidirectional)

    def run(self, values: Values) -> Values:
        """Run the layer as eager does; `values` in the order of `layouts`."""
        x, states, weights = values[0], values[1 : 1 + self.states], values[1 + self.states :]
        given = list(states) if self.kind == "lstm" else states[0]
        results = _LAYERS[self.kind](x, given, weights, self.biases, 1, 0.0, True, self.bidirectional, False)
        return tuple(results)


class _Call(NamedTuple):
    """The operands of a layer in the ops' order, `_OPERANDS`."""

    kind: str
    x: torch.Tensor
    states: Sequence[torch.Tensor]
    weights: Sequence[torch.Tensor]
    biases: bool
    bidirectional: bool

    @property
    def values(self) -> Values:
        """The tensors, in the order of `LayerForm.layouts`."""
        return self.x, *self.states, *self.weights

    @property
    def form(self) -> LayerForm:
        """The facts that fix the kernels."""
        layouts = tuple((value.dtype, tuple(value.shape)) for value in self.values)
        return LayerForm(self.kind, self.x.device, layouts, len(self.states), self.biases, self.bidirectional)


@dataclass(frozen=True)
class _Place:
    """Where a saved tensor is found again: in the reserve, or in an input or result of the layer.

    Attributes:
        index: index of the input or result, inputs first; None: in the reserve.
        start: start of its storage in the reserve, in bytes.
        dtype: element type.
        shape: extents.
        stride: strides in elements.
        offset: elements beyond the offset of the input or result, or beyond `start`.
    """

    index: int | None
    start: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    def read(self, reserve: torch.Tensor, values: Values) -> torch.Tensor:
        """Return the saved tensor."""
        whole = reserve[self.start :] if self.index is None else values[self.index]
        if self.index is None:
            usable = whole.numel() // self.dtype.itemsize * self.dtype.itemsize
            whole = whole[:usable].view(self.dtype)
        return whole.as_strided(self.shape, self.stride, whole.storage_offset() + self.offset)


@dataclass
class _Saving:
    """The tensors that autograd saves while a layer runs.

    Attributes:
        inputs: inputs of the layer.
        flat: bytes that saved tensors are copied into; None: they are held as eager holds them.
        results: numbers, in order of saving, of saved tensors that are results of the layer; None: not known yet.
        places: places of saved tensors, by number; from an earlier run, or found in this one.
        held: held tensors by number: all that are in neither inputs nor results.
        used: bytes that the places found in this run take.
    """

    inputs: Values
    flat: torch.Tensor | None = None
    results: frozenset[int] | None = None
    places: list[_Place | None] = field(default_factory=list)
    held: list[torch.Tensor | None] = field(default_factory=list)
    used: int = 0
    _reserved: dict[tuple[Any, ...], _Place] = field(default_factory=dict)
    _storages: list[StorageWeakRef] = field(default_factory=list)  # keeps addresses from being given to others

    def pack(self, tensor: torch.Tensor) -> int:
        """Note a tensor that autograd saves; return its number."""
        number = len(self.held)
        if number == len(self.places):
            self.places.append(self._place(tensor))
        place = self.places[number]
        if place is None or (place.index is None and self.flat is None):
            # With the graph that made it, it would hold the graph that holds it.
            self.held.append(tensor.detach())
        else:
            self.held.append(None)
            if place.index is None and self.flat is not None:
                place.read(self.flat, ()).copy_(tensor)
        return number

    def finish(self, results: Values) -> None:
        """Find the places that could not be known before the results."""
        for number, (place, tensor) in enumerate(zip(self.places, self.held, strict=True)):
            if place is None and tensor is not None:
                index = _sharing(tensor, results)
                if index is None:
                    self.places[number] = self._in_reserve(tensor)
                else:
                    self.places[number] = _placed(tensor, len(self.inputs) + index, results[index])
                    self.held[number] = None
        self.inputs = ()

    def _place(self, tensor: torch.Tensor) -> _Place | None:
        index = _sharing(tensor, self.inputs)
        if index is not None:
            place = _placed(tensor, index, self.inputs[index])
            return next((other for other in self.places if other == place), place)
        if self.results is None or len(self.places) in self.results:
            return None
        return self._in_reserve(tensor)

    def _in_reserve(self, tensor: torch.Tensor) -> _Place:
        """Return a tensor's place in the reserve, new or earlier."""
        storage, layout = tensor.untyped_storage(), (tensor.storage_offset(), tensor.shape, tensor.stride())
        key = key_of(storage), tensor.dtype, layout
        if key not in self._reserved:
            # In this order of strides, kernels do what they do on the tensor itself.
            stride = torch.empty_like(tensor, device="meta").stride()
            self._reserved[key] = _Place(None, self.used, tensor.dtype, tensor.shape, stride, 0)
            self._storages.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
            self.used += _aligned(tensor.numel() * tensor.element_size())
        return self._reserved[key]


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _sharing(tensor: torch.Tensor, others: Values) -> int | None:
    """Return the number of the first tensor that has the same memory; None where none has."""
    memory = storage_key(tensor)
    return next((number for number, other in enumerate(others) if storage_key(other) == memory), None)


def _placed(tensor: torch.Tensor, index: int, whole: torch.Tensor) -> _Place:
    offset = int(tensor.storage_offset() - whole.storage_offset())
    return _Place(index, 0, tensor.dtype, tensor.shape, tensor.stride(), offset)


class _Entry(torch.autograd.Function):
    """Begins an autograd graph: its results are the tensors of a list, and need a gradient.

    A leaf would be kept in memory by the graph that it begins.
    """

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, values: list[torch.Tensor]) -> Any:
        """Return the tensors; `anchor` needs a gradient, and so do they."""
        del ctx, anchor
        return tuple(value.detach() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Never runs: gradients are asked for where the graph begins."""
        raise AssertionError("a recurrent layer's graph ends here")


@dataclass
class _LayerGraph:
    """The autograd graph of a layer's run, with its saved tensors.

    Attributes:
        begins: edges at which gradients of inputs come out.
        ends: edges at which gradients of results go in.
        places: places of its saved tensors, by number.
        held: tensors that it holds; the others are lent while gradients are computed.
        lock: one thread at a time lends it tensors.
    """

    begins: list[GradientEdge] = field(default_factory=list)
    ends: list[GradientEdge] = field(default_factory=list)
    places: list[_Place | None] = field(default_factory=list)
    held: list[torch.Tensor | None] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, form: LayerForm, values: Values, saving: _Saving) -> Values:
        """Run a layer with autograd; return its results."""
        anchor = torch.empty(0, requires_grad=True)
        with (
            autograd_inside_ops(),
            torch.autograd.graph.saved_tensors_hooks(saving.pack, lambda number: saving.held[number]),
        ):
            entered = _Entry.apply(anchor, list(values))  # type: ignore[no-untyped-call]
            ends = form.run(entered)
        self.begins = [get_gradient_edge(value) for value in entered]
        self.ends = [get_gradient_edge(result) for result in ends]
        results = tuple(result.detach() for result in ends)
        saving.finish(results)
        self.places, self.held = saving.places, saving.held
        return results

    def gradients(
        self, reserve: torch.Tensor, values: Values, given: Sequence[torch.Tensor | None], wanted: Sequence[int]
    ) -> list[torch.Tensor | None]:
        """Return the gradients of some inputs.

        Args:
            reserve: saved tensors of a run, flat, unless this graph holds them.
            values: inputs and results of that run.
            given: gradients of its results.
            wanted: the numbers of the inputs.
        """
        ends = [(edge, gradient) for edge, gradient in zip(self.ends, given, strict=True) if gradient is not None]
        with self.lock:
            held = self.held.copy()
            self._lend(reserve, values)
            try:
                return list(
                    torch.autograd.grad(
                        [edge for edge, _ in ends],
                        [self.begins[number] for number in wanted],
                        [gradient for _, gradient in ends],
                        retain_graph=True,
                        allow_unused=True,
                    )
                )
            finally:
                self.held[:] = held

    def _lend(self, reserve: torch.Tensor, values: Values) -> None:
        read: dict[int, torch.Tensor] = {}  # by the identity of its place: a weight is saved at each step
        for number, place in enumerate(self.places):
            if self.held[number] is None and place is not None:
                if id(place) not in read:
                    read[id(place)] = place.read(reserve, values)
                self.held[number] = read[id(place)]


@dataclass(frozen=True)
class _Saved:
    """The saved tensors of a layer.

    Attributes:
        bytes: beside its inputs and results.
        results: the numbers, in order of saving, of saved tensors that are results.
        read: indices of these results.
    """

    bytes: int
    results: frozenset[int]
    read: tuple[int, ...]


@cache
def saved_by(form: LayerForm) -> _Saved:
    """Return the saved tensors of a layer, by a run on zeros.

    A long sequence is run with fewer steps: each further step saves equally many bytes, up to a few pages.
    """
    dtype, shape = form.layouts[0]
    gates = sum(shape[0] for _, shape in form.layouts[1 + form.states :] if len(shape) == 2)
    most = max(4, _MOST_TRIED_BYTES // max(1, shape[1] * gates * dtype.itemsize))
    # In a thread of its own, torch computes with real tensors although this one captures without data.
    with ThreadPoolExecutor(1) as apart:
        if form.steps <= most:
            return apart.submit(_tried, form).result()
        half, whole = apart.map(_tried, (form.of_steps(most // 2), form.of_steps(most)))
    each = -(-(whole.bytes - half.bytes) // (most - most // 2))
    size = whole.bytes + each * (form.steps - most) + _SLACK_BYTES
    return _Saved(_aligned(size), whole.results, whole.read)


def reserve_bytes(x: torch.Tensor, weights: Sequence[torch.Tensor], states: Sequence[torch.Tensor]) -> int:
    """Return the bytes that oneDNN's LSTM saves besides operands and results.

    Args:
        x: input of the layer in one direction, [steps, batch, features].
        weights: its weights and biases.
        states: its states before the first step, [batch, width].
    """
    values = (x, *(state[None] for state in states), *weights)
    layouts = tuple((value.dtype, tuple(value.shape)) for value in values)
    form = LayerForm("lstm", x.device, layouts, len(states), biases=True, bidirectional=False)
    # Of a layer's states, which are parts of larger tensors, copies are saved.
    return saved_by(form).bytes - sum(state.numel() * state.element_size() for state in states)


def _tried(form: LayerForm) -> _Saved:
    values = tuple(torch.zeros(shape, dtype=dtype, device=form.device) for dtype, shape in form.layouts)
    saving = _Saving(values)
    _LayerGraph().record(form, values, saving)
    indices = {n: place.index for n, place in enumerate(saving.places) if place is not None and place.index is not None}
    results = {number: index - len(values) for number, index in indices.items() if index >= len(values)}
    held = {storage_key(tensor): tensor for tensor in saving.held if tensor is not None}
    # Eager holds whole storages, a flat reserve only what is in them.
    size = max(saving.used, sum(tensor.untyped_storage().nbytes() for tensor in held.values()))
    return _Saved(_aligned(size), frozenset(results), tuple(sorted(set(results.values()))))


# By form, from its first run: the places of what is saved, and a graph that computes gradients from a flat reserve.
_places: dict[LayerForm, list[_Place | None]] = {}
_flat_graphs: dict[LayerForm, _LayerGraph] = {}
_GRAPH = "remat_layer_graph"  # attribute of a tensor that stands for what a layer has saved


def _forward(*operands: Any) -> list[torch.Tensor]:
    """Run a layer; return result, last states and an empty tensor.

    The empty tensor holds the tensors that eager would have saved.
    """
    layer, graph = _Call(*operands), _LayerGraph()
    form = layer.form
    saving = _Saving(layer.values, places=_places.get(form, []))
    results = graph.record(form, layer.values, saving)
    _places[form] = saving.places
    reserve = torch.empty(0, dtype=torch.uint8, device=form.device)
    setattr(reserve, _GRAPH, graph)
    return [*results, reserve]


def _forward_flat(*operands: Any) -> list[torch.Tensor]:
    """Run a layer; return result, last states and the saved tensors.

    All saved tensors are in one tensor, which can be moved.
    """
    layer, graph = _Call(*operands), _LayerGraph()
    form = layer.form
    saved = saved_by(form)
    reserve = torch.empty(saved.bytes, dtype=torch.uint8, device=form.device)
    saving = _Saving(layer.values, reserve, saved.results, _places.get(form, []))
    results = graph.record(form, layer.values, saving)
    _places[form] = saving.places
    _flat_graphs.setdefault(form, graph)
    return [*results, reserve]


def _shapes_of(*operands: Any) -> list[torch.Tensor]:
    layer = _Call(*operands)
    x, states, saved = layer.x, layer.states, saved_by(layer.form)
    steps, batch = x.shape[:2]
    results = x.new_empty((steps, batch, (1 + layer.bidirectional) * states[0].shape[2]))
    return [results, *(state.new_empty(state.shape) for state in states), x.new_empty(saved.bytes, dtype=torch.uint8)]


def _backward(*given: Any) -> list[torch.Tensor]:
    """Return the gradients of the wanted inputs, of the step that made `reserve`.

    Args:
        given: the operands of the layer; what it saved; its results, those that `saved_by` names; the gradients of all
            results; the numbers of the wanted inputs: the input itself, the states, the weights.
    """
    *operands, reserve, results, gradients, wanted = given
    layer = _Call(*operands)
    form, values = layer.form, layer.values
    graph: _LayerGraph | None = getattr(reserve, _GRAPH, None)
    if graph is None and reserve.numel():
        if form not in _flat_graphs:
            _forward_flat(*layer)
        graph = _flat_graphs[form]
    elif graph is None:  # somebody's hooks on saved tensors gave back a copy
        graph = getattr(_forward(*layer)[-1], _GRAPH)
    read = dict(zip(saved_by(form).read, results, strict=True))
    all_results = tuple(read.get(number, reserve) for number in range(1 + form.states))
    derivatives = graph.gradients(reserve, (*values, *all_results), gradients, wanted)
    return _apart(derivatives, [values[number] for number in wanted])


def _apart(gradients: Sequence[torch.Tensor | None], like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return gradients as contiguous tensors, each in memory of its own."""
    taken: set[int] = set()
    apart = []
    for gradient, value in zip(gradients, like, strict=True):
        own = torch.zeros_like(value, memory_format=torch.contiguous_format) if gradient is None else gradient
        own = own.contiguous()
        size = own.numel() * own.element_size()
        if storage_key(own) in taken or own.untyped_storage().nbytes() != size:
            own = own.clone()
        taken.add(storage_key(own))
        apart.append(own)
    return apart


def _shapes_of_gradients(*given: Any) -> list[torch.Tensor]:
    *operands, _, _, _, wanted = given
    values = _Call(*operands).values
    return [values[number].new_empty(values[number].shape) for number in wanted]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    layer = _Call(*inputs)
    read = saved_by(layer.form).read
    ctx.sizes = len(layer.states), len(layer.weights)
    ctx.settings = layer.kind, layer.biases, layer.bidirectional
    ctx.save_for_backward(*layer.values, output[-1], *(output[number] for number in read))
    ctx.wanted = [number for number, value in enumerate(layer.values) if value.requires_grad]


def _differentiate(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> Any:
    kind, biases, bidirectional = ctx.settings
    states, weights = ctx.sizes
    saved = iter(ctx.saved_tensors)
    x, state_values, weight_values = next(saved), [*islice(saved, states)], [*islice(saved, weights)]
    reserve, results = next(saved), [*saved]
    layer = _Call(kind, x, state_values, weight_values, biases, bidirectional)
    derivatives = torch.ops.remat.recurrent_backward(*layer, reserve, results, list(gradients[:-1]), ctx.wanted)
    by_number = dict(zip(ctx.wanted, derivatives, strict=True))
    every = [by_number.get(number) for number in range(1 + states + weights)]
    return None, every[0], every[1 : 1 + states], every[1 + states :], None, None


_library: Any = torch.library.Library("remat", "DEF")  # type: ignore[no-untyped-call]
_OPERANDS = "str kind, Tensor x, Tensor[] states, Tensor[] weights, bool biases, bool bidirectional"
_library.define(f"recurrent({_OPERANDS}) -> Tensor[]")
_library.define(f"recurrent_flat({_OPERANDS}) -> Tensor[]")
_library.define(
    f"recurrent_backward({_OPERANDS}, Tensor reserve, Tensor[] results, Tensor?[] gradients, int[] wanted) -> Tensor[]"
)
for _name, _run, _shapes in (
    ("recurrent", _forward, _shapes_of),
    ("recurrent_flat", _forward_flat, _shapes_of),
    ("recurrent_backward", _backward, _shapes_of_gradients),
):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"remat::{_name}", _shapes, lib=_library)
torch.library.register_autograd("remat::recurrent", _differentiate, setup_context=_remember, lib=_library)

# What carries out the ops: called in their places, it shows dispatch modes what it makes.
CARRIED_OUT_BY: dict[Any, Callable[..., list[torch.Tensor]]] = {
    torch.ops.remat.recurrent.default: _forward,
    torch.ops.remat.recurrent_flat.default: _forward_flat,
    torch.ops.remat.recurrent_backward.default: _backward,
}
# Where what a layer saves goes to the host, it has to be in memory that can be copied.
WITH_FLAT_RESERVE = {torch.ops.remat.recurrent.default: torch.ops.remat.recurrent_flat.default}
