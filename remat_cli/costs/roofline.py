"""Times on a device, from its peak rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from remat_cli.core.graph import Draft, Op
from remat_cli.core.link import Duplex
from remat_cli.errors import UsageError
from remat_cli.settings import Setting

_NS_PER_S = 10**9
_DEFAULT_DTYPE = "float32"


@dataclass(frozen=True, slots=True)
class Device:
    """The rates and overheads of a device.

    Profiles are in `configs/devices`.

    Attributes:
        name: name of the device, for people.
        peak_flops: FLOP/s of dense matrix products by element type ("float32", "float16", ...); other types run at the
            rate of float32, which is required.
        bandwidth: bytes/s between the processor and its memory.
        memory_bytes: size of the device's memory.
        link_bandwidth: bytes/s between the device's memory and the host's, in one direction.
        link_duplex: whether transfers in both directions run at the same time, each at this rate.
        launch_overhead_ns: time of every op in addition to its work.
        compute_efficiency: share of `peak_flops` that real kernels reach, above 0 and at most 1.
        memory_efficiency: share of `bandwidth` that real kernels reach, above 0 and at most 1.
        node_devices: number of devices in one node; 0 if unknown.
        node_bandwidth: bytes/s from a device to the others of its node, in one direction.
        network_bandwidth: bytes/s from a device to other nodes, in one direction.
        collective_overhead_ns: time of every collective in addition to its transfers.
        collective_efficiency: share of the two bandwidths that collectives reach, above 0 and at most 1.
        compute_capability: NVIDIA's number of the GPU's generation, such as 9.0; 0 for other devices.

    Raises:
        UsageError: a figure is out of its range.
    """

    name: str
    peak_flops: Mapping[str, int]
    bandwidth: int
    memory_bytes: int
    link_bandwidth: int
    link_duplex: Duplex = Duplex.HALF
    launch_overhead_ns: int = 0
    compute_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    node_devices: int = 0
    node_bandwidth: int = 0
    network_bandwidth: int = 0
    collective_overhead_ns: int = 0
    collective_efficiency: float = 1.0
    compute_capability: float = 0.0

    def __post_init__(self) -> None:
        if _DEFAULT_DTYPE not in self.peak_flops:
            raise UsageError(
                f"device {self.name!r} has no peak_flops for {_DEFAULT_DTYPE}",
                hint="add it: it is also the rate of element types that are not listed",
            )
        figures = {f"peak_flops.{dtype}": peak for dtype, peak in self.peak_flops.items()}
        figures |= {name: getattr(self, name) for name in ("bandwidth", "memory_bytes", "link_bandwidth")}
        for name, figure in figures.items():
            if figure <= 0:
                raise UsageError(f"device {self.name!r} has {name} {figure}", hint="give a figure above 0")
        for name in (
            "launch_overhead_ns",
            "node_devices",
            "node_bandwidth",
            "network_bandwidth",
            "collective_overhead_ns",
            "compute_capability",
        ):
            if getattr(self, name) < 0:
                raise UsageError(f"device {self.name!r} has {name} {getattr(self, name)}", hint="give 0 or more")
        for name in ("compute_efficiency", "memory_efficiency", "collective_efficiency"):
            share = getattr(self, name)
            if not 0 < share <= 1:
                raise UsageError(f"device {self.name!r} has {name} {share}", hint="give a share above 0 and up to 1")

    def collective_time(self, size: int, ranks: int) -> int:
        """Return the time in ns to gather or scatter `size` bytes by rings.

        Each of `ranks` devices receives the others' parts. Within a node the rate is `node_bandwidth`. Over several
        nodes every ring passes from node to node, and all rings share the networks of a node's devices: those of the
        smallest node set the rate. Source: Thakur et al., Optimization of Collective Communication Operations in MPICH,
        2005, section 4.1; NVIDIA, nccl-tests, "Performance reported by NCCL tests", bus bandwidth.

        Raises:
            UsageError: the profile lacks the number of devices in a node, or a bandwidth between so many devices.
        """
        several = ranks > self.node_devices
        for name in ("node_devices", "node_bandwidth", *(("network_bandwidth",) if several else ())):
            if not getattr(self, name):
                raise UsageError(
                    f"device {self.name!r} does not say how fast {ranks} ranks exchange parameters: it has no {name}",
                    hint=("use ", Setting("device", "h100"), f"; or give {name} in a profile of your own"),
                )
        rate = self.node_bandwidth
        if several:
            rate = min(rate, self.network_bandwidth * (ranks % self.node_devices or self.node_devices))
        transfers_s = size * (ranks - 1) / ranks / (rate * self.collective_efficiency)
        return ceil(transfers_s * _NS_PER_S) + self.collective_overhead_ns


@dataclass(frozen=True, slots=True)
class Roofline:
    """The time of an op is its slower part on a device, plus launch.

    One part is computing, the other moving bytes, each at the device's rate.

    Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
    """

    time_unit: ClassVar[str] = "ns"
    remedy: ClassVar[str] = (
        "give these ops 'flops' and 'moved_bytes' in the file, or keep the times that the file has (cost model given)"
    )

    device: Device

    def time(self, graph: Draft, op: Op) -> int | None:
        """Return the time of `op` in ns.

        If only FLOPs or only bytes are known, they alone give the time.
        """
        if op.flops is None and op.moved_bytes is None:
            return None
        return self._time(op.flops or 0, op.moved_bytes or 0, _dtype(graph, op))

    def grad_time(self, graph: Draft, op: Op) -> int | None:
        """Return the time of the backward of `op` in ns; None if unknown.

        The backward reads the gradients of the outputs and the saved tensors, and writes the gradients of inputs and
        weights. So it moves the bytes of the forward op and of the saved tensors.
        """
        if op.flops is None and op.moved_bytes is None:
            return None
        kept = (*op.inputs, *op.outputs) if op.saves is None else op.saves
        saved_bytes = sum(graph.tensors[name].bytes for name in kept)
        flops = 2 * (op.flops or 0) if op.grad_flops is None else op.grad_flops
        return self._time(flops, (op.moved_bytes or 0) + saved_bytes, _dtype(graph, op))

    def _time(self, flops: int, moved_bytes: int, dtype: str) -> int:
        device = self.device
        peak = device.peak_flops.get(dtype, device.peak_flops[_DEFAULT_DTYPE])
        compute_s = flops / (peak * device.compute_efficiency)
        memory_s = moved_bytes / (device.bandwidth * device.memory_efficiency)
        return ceil(max(compute_s, memory_s) * _NS_PER_S) + device.launch_overhead_ns


def _dtype(graph: Draft, op: Op) -> str:
    """Return the element type of an op's computation.

    It is the first known type among the op's outputs, then its inputs.
    """
    known = (graph.tensors[name].dtype for name in (*op.outputs, *op.inputs))
    return next((dtype for dtype in known if dtype is not None), _DEFAULT_DTYPE)
