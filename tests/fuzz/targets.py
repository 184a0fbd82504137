"""What is fuzzed: all that reads a file of a user's. Whatever the bytes, it ends with a result or with a message."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from remat_cli.batch.manifest import load_manifest
from remat_cli.checks.project import load_project
from remat_cli.config import GraphOptions, load_config
from remat_cli.core.graph import Graph
from remat_cli.core.problem import Budget, Problem
from remat_cli.core.simulate import simulate
from remat_cli.core.solve import baseline_of, solve
from remat_cli.errors import RematError
from remat_cli.formats.schedule_json import read_schedule, schedule_bytes
from remat_cli.planners.keep_all import KeepAll
from remat_cli.prepare import prepare
from tests.places import GRAPHS

_SKIP_CHAIN = GRAPHS / "skip_chain.json"
# Bytes of a file that a fuzzer may try: readers that take time for each byte are to show here, not to be hidden.
LARGEST = 1 << 16


@dataclass(frozen=True)
class Target:
    """Something that reads files.

    Attributes:
        read: takes a path; a RematError is a fine end, anything else that it raises is a bug.
        seeds: good files, from which mutations start.
    """

    read: Callable[[Path], object]
    seeds: tuple[bytes, ...]

    def outcome(self, content: bytes) -> str:
        """Read a file of these bytes: "read", "refused" with a message, or "refused without a message"."""
        with _file(content) as path:
            try:
                self.read(path)
            except RematError as error:
                return "refused" if error.message else "refused without a message"
        return "read"


@contextmanager
def _file(content: bytes) -> Iterator[Path]:
    # Memory, where the system offers it as a folder: a fuzzer writes a file for each of its tries.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=memory) as folder:
        path = Path(folder, "input")
        path.write_bytes(content)
        yield path


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()


def tiny_graph() -> dict[str, Any]:
    """A forward graph that uses most fields of the native format."""
    return {
        "format": "remat.graph/1",
        "name": "tiny",
        "kind": "forward",
        "time_unit": "ns",
        "resident_bytes": 64,
        "tensors": [
            {"name": "x", "bytes": 16},
            {"name": "a", "bytes": 32, "shape": [2, 4], "dtype": "float32"},
            {"name": "v", "bytes": 0, "view_of": "a"},
            {"name": "b", "bytes": 32},
            {"name": "y", "bytes": 8},
        ],
        "ops": [
            {"name": "one", "type": "MatMul", "inputs": ["x"], "outputs": ["a"], "time": 5, "saves": ["x"]},
            {"name": "two", "type": "Reshape", "inputs": ["a"], "outputs": ["v"], "time": 0},
            {"name": "three", "type": "Relu", "inputs": ["v"], "outputs": ["b"], "time": 2, "inplace": "v"},
            {
                "name": "four",
                "type": "Sum",
                "inputs": ["b", "a"],
                "outputs": ["y"],
                "time": 3,
                "workspace_bytes": 4,
                "grad_time": 4,
                "flops": 8,
                "moved_bytes": 72,
            },
        ],
        "outputs": ["y"],
    }


_NODE_LINK = {
    "directed": True,
    "multigraph": False,
    "graph": {},
    "nodes": [{"id": n, "cost_cpu": 1 + n, "cost_ram": 8, "backward": n == 2} for n in range(3)],
    "edges": [{"source": 0, "target": 1}, {"source": 1, "target": 2}],
}

_CONFIG = b"""planner:
  name: approx_dp
  strategy: memory
budget: 8GB
max_overhead: 10%
mode: training
dims: {batch: 8, seq: 512}
input_shapes: {x: [1, 3, 224, 224]}
optimizer: adam
cost_model: roofline
device: a100
link_bandwidth: 12GB/s
link_duplex: full
offload: true
report: {timeline: true, largest: 8}
"""

_PROJECT = b"""baseline: remat-baseline.json
defaults:
  budget: 80%
  max_overhead: 10%
models:
  - name: small
    path: model.onnx
    dims: {batch: 8}
    max_peak: 2GB
    max_regression: 2%
"""

_MANIFEST = f"""budgets: [80%, 8GB]
configs: [dtr, {{name: rotor, slots: 100}}]
graphs:
  - {_SKIP_CHAIN}
  - {{path: {_SKIP_CHAIN}, dims: {{batch: 8}}}}
""".encode()


@cache
def _schedule_graph() -> Graph:
    return prepare(_SKIP_CHAIN, GraphOptions()).graph


def _schedule() -> bytes:
    graph = _schedule_graph()
    solution = solve(Problem(graph, Budget(baseline_of(graph).peak_bytes)), KeepAll())
    return schedule_bytes(solution, "training", {"name": "keep_all", "options": {}})


def _moving_schedule() -> bytes:
    """The same with a copy to the host, and the link that it goes over."""
    document = json.loads(_schedule())
    (made, *_) = _schedule_graph().op[document["steps"][0][1]].outputs
    document["steps"][1:1] = [["offload", made], ["wait", made]]
    document["link"] = {"bytes_per_time": "16/5", "duplex": "full"}
    document["bound"] = {"overhead": 0.0, "scope": "any-order", "transfers": True}
    return _json(document)


def _replay(path: Path) -> None:
    file = read_schedule(path)
    simulate(_schedule_graph(), file.schedule, link=file.link)


def _prepare(path: Path) -> None:
    prepare(path, GraphOptions(dims={"batch": 2}))


def targets() -> Mapping[str, Target]:
    """Return everything that reads files, by name."""
    from tests.fuzz.test_onnx_damage import WHOLE

    return {
        "native": Target(_prepare, (_json(tiny_graph()),)),
        "node_link": Target(_prepare, (_json(_NODE_LINK),)),
        "onnx": Target(_prepare, (WHOLE,)),
        "schedule": Target(_replay, (_schedule(), _moving_schedule())),
        "config": Target(load_config, (_CONFIG,)),
        "project": Target(lambda path: load_project(path), (_PROJECT,)),
        "manifest": Target(load_manifest, (_MANIFEST,)),
    }
