"""Configuration: YAML files to checked options, with the file and line of what is wrong.

Everything that a user can set by name goes through here, from whichever side it comes: a config file, `--option
key=value`, a device profile, a table of measured times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from os.path import exists, isfile  # unlike those of Path, false for a name that no file can have
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from remat_cli.costs import COST_MODELS, Device
from remat_cli.errors import UsageError
from remat_cli.formats import Aliasing
from remat_cli.generate import GENERATORS, Generator
from remat_cli.planners import PLANNERS
from remat_cli.problem import Planner
from remat_cli.training import OPTIMIZERS
from remat_cli.units import BudgetSpec, parse_budget, parse_share

if TYPE_CHECKING:
    import yaml
    from pydantic import BaseModel

Built = TypeVar("Built")

# Cost models by name, and the file's own times, which need no model.
GIVEN_COSTS = "given"
MODES = ("training", "inference")


@dataclass(frozen=True)
class ReportOptions:
    """What the terminal report shows.

    Attributes:
        timeline: draw memory over time.
        largest: how many tensors at the peak are listed.
    """

    timeline: bool = True
    largest: int = 8


@dataclass(frozen=True)
class GraphOptions:
    """How a file becomes the graph that is planned; None leaves the choice to what the file is.

    Attributes:
        mode: "training" derives the training graph of a forward graph; "inference" plans the graph as it is. By
            default training for forward graphs and ONNX.
        dims: values of symbolic dimensions.
        input_shapes: whole shapes of graph inputs.
        value_shapes: shapes of values that cannot be inferred.
        aliasing: which ops share storage. By default as in PyTorch for training, as in onnxruntime for inference.
        strict: estimates are errors.
        optimizer: whose state is resident, where the file tells parameters apart (ONNX, PyTorch). By default sgd: none.
        accumulate: a PyTorch step adds to gradients that are there before; else it makes them.
        cost_model: what gives ops their time. By default roofline for ONNX, else the times in the file.
        device: profile for the roofline model, and for the link to the host.
        measurements: table of measured times, for the measured model.
        link_bandwidth: of the link to the host; by default the device profile's, where one is given.
    """

    mode: str | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    value_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    aliasing: Aliasing | None = None
    strict: bool = False
    optimizer: str | None = None
    accumulate: bool = False
    cost_model: str | None = None
    device: str | None = None
    measurements: str | None = None
    link_bandwidth: str | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are named; a device may also be the name of one that comes with remat."""
        return tuple(Path(name) for name in (self.device, self.measurements) if name is not None)

    def beside(self, folder: Path) -> GraphOptions:
        """Return the options with the files that they name taken from `folder`, that of the file that names them."""
        return replace(
            self,
            device=None if self.device is None else str(beside(folder, self.device)),
            measurements=None if self.measurements is None else str(folder / self.measurements),
        )

    def under(self, above: GraphOptions) -> GraphOptions:
        """Return the options of both; what `above` says wins, name by name where there are names."""
        said: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(above, item.name)
            if isinstance(value, Mapping):
                said[item.name] = {**getattr(self, item.name), **value}
            elif value is not None and value is not False:
                said[item.name] = value
        return replace(self, **said)


@dataclass(frozen=True)
class RunConfig:
    """What a run is asked for; None where nothing was said.

    Attributes:
        planner: name of a planner.
        options: of that planner.
        budget: the budget.
        max_overhead: plans of more overhead are not taken.
        graph: how the file becomes the graph that is planned.
        report: what the terminal report shows.
        sources: the config files that said it.
    """

    planner: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: BudgetSpec | None = None
    max_overhead: Fraction | None = None
    graph: GraphOptions = field(default_factory=GraphOptions)
    report: ReportOptions = field(default_factory=ReportOptions)
    sources: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that said it, and those that it names."""
        return (*self.sources, *self.graph.files)


@dataclass(frozen=True)
class GraphKeys:
    """The keys of a file that say how a graph is read, as YAML gives them; `GraphOptions` says what they mean."""

    mode: str | None = None
    dims: dict[str, int] = field(default_factory=dict)
    input_shapes: dict[str, list[int]] = field(default_factory=dict)
    value_shapes: dict[str, list[int]] = field(default_factory=dict)
    optimizer: str | None = None
    accumulate: bool = False
    cost_model: str | None = None
    device: str | None = None
    measurements: str | None = None
    aliasing: Aliasing | None = None
    strict: bool = False
    link_bandwidth: str | float | None = None


@dataclass(frozen=True)
class _ConfigFile(GraphKeys):
    """The keys of a config file, as YAML gives them."""

    planner: str | dict[str, Any] | None = None
    budget: str | int | None = None
    max_overhead: str | float | None = None
    report: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Document:
    """Values from a file or the command line, and where each of them stands.

    Attributes:
        values: what was said.
        source: the file, or the option, for messages.
        lines: line of each value by its path of keys; empty where there are no lines.
    """

    values: Mapping[str, Any]
    source: str
    lines: Mapping[tuple[str | int, ...], int] = field(default_factory=dict)

    def place(self, path: tuple[str | int, ...]) -> str:
        """Return "file:line: key" of a value, or of the nearest thing around it that has a line."""
        around = path
        while around and around not in self.lines:
            around = around[:-1]
        line = f":{self.lines[around]}" if around in self.lines else ""
        return f"{self.source}{line}: {'.'.join(map(str, path))}"

    def section(self, key: str | int, values: Mapping[str, Any]) -> Document:
        """Return the values under one key, or at one place of a list, as a document of their own."""
        lines = {path[1:]: line for path, line in self.lines.items() if path[:1] == (key,)}
        return Document(values, self.source, lines)


def load_config(path: Path) -> RunConfig:
    """Read a config file; a name without a folder that is no file here means one of those that come with remat.

    Raises:
        UsageError: the file is missing or no valid YAML, or a key or value is wrong; with file and line.
    """
    source = _shipped(path, "configs")
    document = read_yaml(source)
    raw = checked(_ConfigFile, document)
    planner, options = planner_section(raw.planner, document)
    budget, overhead = raw.budget, raw.max_overhead
    return RunConfig(
        planner=planner,
        options=options,
        budget=None if budget is None else placed(document, ("budget",), lambda: parse_budget(str(budget))),
        max_overhead=None
        if overhead is None
        else placed(document, ("max_overhead",), lambda: parse_share(str(overhead))),
        graph=graph_section(raw, document),
        report=checked(ReportOptions, document.section("report", raw.report)),
        sources=(source,),
    )


def graph_section(raw: GraphKeys, document: Document) -> GraphOptions:
    """Return what the keys of a file say of how a graph is read.

    Raises:
        UsageError: a name in them is not known.
    """
    for key, value, known in (
        ("mode", raw.mode, MODES),
        ("optimizer", raw.optimizer, OPTIMIZERS),
        ("cost_model", raw.cost_model, (GIVEN_COSTS, *COST_MODELS)),
    ):
        if value is not None and value not in known:
            raise unknown_name(document.place((key,)), value, known)
    return GraphOptions(
        mode=raw.mode,
        dims=raw.dims,
        input_shapes={name: tuple(shape) for name, shape in raw.input_shapes.items()},
        value_shapes={name: tuple(shape) for name, shape in raw.value_shapes.items()},
        aliasing=raw.aliasing,
        strict=raw.strict,
        optimizer=raw.optimizer,
        cost_model=raw.cost_model,
        device=raw.device,
        measurements=raw.measurements,
        link_bandwidth=None if raw.link_bandwidth is None else str(raw.link_bandwidth),
    )


def placed(document: Document, path: tuple[str | int, ...], parse: Callable[[], Built]) -> Built:
    """Return what `parse` makes of the value at `path`; its error is given the value's place."""
    try:
        return parse()
    except UsageError as error:
        raise UsageError(f"{document.place(path)}: {error.message}", hint=error.hint) from None


def planner_section(section: str | dict[str, Any] | None, document: Document) -> tuple[str | None, dict[str, Any]]:
    """Return name and options of the planner that the key `planner` names: a name, or a mapping with one in it.

    Raises:
        UsageError: there is no such planner, or no such option, or a value is wrong.
    """
    if section is None:
        return None, {}
    name = section if isinstance(section, str) else section.get("name")
    if not isinstance(name, str):
        raise UsageError(
            f"{document.place(('planner',))}: has no name", hint=f"add 'name: ...', one of {', '.join(PLANNERS)}"
        )
    if name not in PLANNERS:
        raise unknown_name(document.place(("planner",)), name, PLANNERS)
    options = {} if isinstance(section, str) else {key: value for key, value in section.items() if key != "name"}
    checked(PLANNERS[name], document.section("planner", options))
    return name, options


def make_planner(name: str, options: Mapping[str, Any], source: str = "--option") -> Planner:
    """Build the planner of this name with these options.

    Args:
        name: a name in PLANNERS.
        options: as a config file or `parse_option` gives them.
        source: where they come from, for messages.

    Raises:
        UsageError: there is no such planner, or no such option, or a value is wrong.
    """
    if name not in PLANNERS:
        raise unknown_name("--planner", name, PLANNERS)
    # Where nothing is given there is nothing to check, and pydantic need not be loaded.
    return checked(PLANNERS[name], Document(options, source)) if options else PLANNERS[name]()


def make_generator(family: str, options: Mapping[str, Any], source: str = "--option") -> Generator:
    """Build the generator of this family of graphs with these options, as `make_planner` does.

    Raises:
        UsageError: there is no such family, or no such option, or a value is wrong.
    """
    if family not in GENERATORS:
        raise unknown_name("FAMILY", family, GENERATORS)
    return checked(GENERATORS[family], Document(options, source))


def planner_schemas() -> dict[str, Any]:
    """Return a JSON Schema of the options of each planner, by its name."""
    return {name: _model(planner).model_json_schema() for name, planner in PLANNERS.items()}


def parse_option(text: str) -> tuple[str, Any]:
    """Return name and value of "key=value"; the value is read as YAML would.

    Raises:
        UsageError: there is no "=".
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--option {text!r} is not understood", hint="write it like --option strategy=time")
    return key, _scalar(value)


def load_device(name: str) -> Device:
    """Read a device profile: the name of one that comes with remat ("a100"), or the path of a YAML file.

    Raises:
        UsageError: there is no such profile, or a key or value in it is wrong.
    """
    return checked(Device, read_yaml(_shipped(Path(name), "configs/devices")))


def beside(folder: Path, name: str) -> Path:
    """Return the file of that name in `folder`; where there is none, the name, of what comes with remat."""
    path = folder / name
    return path if isfile(path) else Path(name)


def shipped_names(folder: str) -> list[str]:
    """Return the names of the files that come with remat in `folder`: "configs" or "configs/devices"."""
    return sorted(path.stem for path in _shipped_folder(folder).glob("*.yaml"))


def _shipped_folder(folder: str) -> Path:
    # In an installed copy, configs/ lies inside the package; in a checkout it stands at the top of the tree.
    package = Path(__file__).parents[1]
    installed = package / folder
    return installed if installed.is_dir() else package.parent / folder


def _shipped(path: Path, folder: str) -> Path:
    """Return `path` if there is such a file; else, for a bare name, the file of that name that comes with remat."""
    if exists(path) or len(path.parts) != 1:
        return path
    shipped = _shipped_folder(folder) / f"{path.name.removesuffix('.yaml')}.yaml"
    if isfile(shipped):
        return shipped
    names = shipped_names(folder)
    close = get_close_matches(path.stem, names, n=1)
    raise UsageError(
        f"{path}: no such file, and nothing of that name comes with remat",
        hint=f"did you mean {close[0]!r}?" if close else f"name a file, or one of {', '.join(names)}",
    )


def unknown_name(place: str, name: str, known: Mapping[str, object] | tuple[str, ...]) -> UsageError:
    """Return the error for a name that stands at `place` and is none of those that are known."""
    close = get_close_matches(name, list(known), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(f"{place}: there is no {name!r}", hint=f"{hint}use one of {', '.join(known)}")


@cache
def _model(cls: type) -> type[BaseModel]:
    """Return a pydantic model of the fields of a frozen dataclass, so that the dataclass itself needs no pydantic."""
    from pydantic import ConfigDict, create_model

    hints = get_type_hints(cls)
    known: dict[str, Any] = {}
    for item in fields(cls):
        default = item.default if item.default is not MISSING else ...
        if item.default_factory is not MISSING:
            default = item.default_factory()
        known[item.name] = (hints[item.name], default)
    return create_model(cls.__name__, __config__=ConfigDict(extra="forbid", strict=True), **known)


def checked(cls: type[Built], document: Document) -> Built:
    """Build the frozen dataclass `cls` from a document, its field types held strictly.

    Raises:
        UsageError: for the first thing that is wrong, with its place and, for an unknown key, what may be meant.
    """
    from pydantic import ValidationError

    try:
        # By way of JSON, where text may stand for an enum's member and a whole number for a float.
        model = _model(cls)  # type: ignore[arg-type]  # mypy holds that a class cannot be hashed
        valid = model.model_validate_json(json.dumps(document.values))
    except ValidationError as error:
        known = [item.name for item in fields(cls)]  # type: ignore[arg-type]
        raise _first_fault(error.errors()[0], document, known) from None
    return cls(**{name: getattr(valid, name) for name in valid.model_fields_set})


def _first_fault(fault: Mapping[str, Any], document: Document, known: list[str]) -> UsageError:
    path = tuple(fault["loc"])
    # A union adds the names of its branches to the path, which say nothing to a user.
    while len(path) > 1 and path not in document.lines:
        path = path[:-1]
    place = document.place(path)
    if fault["type"] == "extra_forbidden":
        close = get_close_matches(str(path[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known) or 'nothing'}"
        return UsageError(f"{place}: unknown key", hint=hint)
    if fault["type"] == "missing":
        return UsageError(f"{place}: is missing", hint="add it")
    return UsageError(f"{place}: {fault['msg'].lower()}, not {fault['input']!r}", hint="correct the value")


def read_yaml(path: Path) -> Document:
    """Read a YAML file (or JSON, which is YAML) whose top is a mapping, keeping the line of everything."""
    import yaml

    from remat_cli.formats.source import LARGEST_CONFIG, read_bytes

    content = read_bytes(path, error=UsageError, largest=LARGEST_CONFIG)
    try:
        text = content.decode("utf-8-sig")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no valid UTF-8 at byte {error.start}", hint="save it as UTF-8") from None
    except RecursionError:
        raise UsageError(f"{path}: is nested too deeply", hint="is this the right file?") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UsageError(f"{path}{line}: no valid YAML: {problem}", hint="correct the file at this line") from None
    if node is None:
        return Document({}, str(path))
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{path}: is not a mapping of keys to values", hint="write it like 'budget: 80%'")
    lines: dict[tuple[str | int, ...], int] = {}
    values = _value(node, (), str(path), lines, set())
    return Document(values, str(path), lines)


def _value(
    node: yaml.Node, path: tuple[str | int, ...], source: str, lines: dict[tuple[str | int, ...], int], seen: set[int]
) -> Any:
    """Return the value of a YAML node, strictly: no repeated keys, no aliases, no `010` that means 8."""
    import yaml

    line = node.start_mark.line + 1
    if path:
        lines[path] = line
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node.value) if node.style is None else node.value
    if id(node) in seen:
        raise UsageError(f"{source}:{line}: YAML aliases are not supported", hint="write the value out")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, i), source, lines, seen) for i, item in enumerate(node.value)]
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        key_line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise UsageError(f"{source}:{key_line}: a key must be a plain name", hint="correct the file at this line")
        if key in values:
            raise UsageError(f"{source}:{key_line}: {key!r} is given twice", hint="keep one of the two")
        values[key] = _value(value_node, (*path, key), source, lines, seen)
        lines[(*path, key)] = key_line
    return values


_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
_NUMBER = re.compile(r"[-+]?(0|[1-9]\d*(?:_\d+)*)(\.\d+)?([eE][-+]?\d+)?")


def _scalar(text: str) -> Any:
    """Return what a plain YAML scalar means: a decimal number, true, false or null; everything else is text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > 300:
        return text
    return int(text) if match[2] is None and match[3] is None else float(text)
