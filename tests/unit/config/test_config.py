"""Configuration: what is read, what is refused, with which place and hint."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from remat_cli.config import (
    PlannerChoice,
    Request,
    checked,
    load_config,
    load_device,
    load_measurements,
    named_planner,
    parse_option,
    planner_schemas,
    read_yaml,
    shipped_names,
)
from remat_cli.costs import Device
from remat_cli.errors import UsageError
from remat_cli.formats import Aliasing
from remat_cli.formats.source import LARGEST_CONFIG
from remat_cli.planners import PLANNERS
from remat_cli.planners.published.lower_sets.dp_planners import ApproxDP
from remat_cli.planners.published.lower_sets.options import Strategy
from remat_cli.units import BudgetSpec
from tests.places import ROOT


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return path


def test_every_key_is_read(tmp_path: Path) -> None:
    config = load_config(
        written(
            tmp_path,
            """
planner: {name: approx_dp, strategy: memory, time_limit: 5}
budget: 80%
max_overhead: 10%
mode: training
dims: {batch: 8, seq: 512}
input_shapes: {x: [1, 3, 224, 224]}
value_shapes: {y: [2]}
optimizer: adam
cost_model: roofline
device: a100
measurements: times.yaml
aliasing: ort-cpu
strict: true
link_bandwidth: 12GB/s
report: {timeline: false, largest: 3}
""",
        )
    )
    assert config.request.planner == PlannerChoice("approx_dp", {"strategy": "memory", "time_limit": 5})
    assert config.request.budget == BudgetSpec(share=Fraction(4, 5))
    assert config.request.max_overhead == Fraction(1, 10)
    graph = config.graph
    assert (graph.mode, graph.optimizer, graph.cost_model, graph.device) == (
        "training",
        "adam",
        "roofline",
        "a100",
    )
    assert graph.dims == {"batch": 8, "seq": 512}
    assert (graph.input_shapes, graph.value_shapes) == ({"x": (1, 3, 224, 224)}, {"y": (2,)})
    assert (graph.measurements, graph.aliasing, graph.strict) == ("times.yaml", Aliasing.ORT_CPU, True)
    assert graph.link_bandwidth == "12GB/s"
    assert (config.report.timeline, config.report.largest) == (False, 3)


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_says_nothing(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text or "{}")
    assert load_config(path).request == Request()


def test_a_budget_may_be_a_plain_number_of_bytes(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "budget: 8000")).request.budget == BudgetSpec(device_bytes=8000)


FAULTS = {
    "unknown key": ("budget: 80%\nplaner: approx_dp\n", "c.yaml:2: planer: unknown key", "did you mean 'planner'?"),
    "unknown option": (
        "planner:\n  name: approx_dp\n  stratgy: time\n",
        "c.yaml:3: stratgy: unknown key",
        "did you mean 'strategy'?",
    ),
    "unknown planner": (
        "planner: aprox_dp\n",
        "c.yaml:1: planner: there is no 'aprox_dp'",
        "did you mean 'approx_dp'?",
    ),
    "planner without a name": ("planner: {strategy: time}\n", "c.yaml:1: planner: has no name", "add 'name: ...'"),
    "unknown mode": ("mode: trainin\n", "c.yaml:1: mode: there is no 'trainin'", "did you mean 'training'?"),
    "unknown optimizer": ("optimizer: adm\n", "c.yaml:1: optimizer: there is no 'adm'", "did you mean 'adam'?"),
    "unknown cost model": ("cost_model: roof\n", "c.yaml:1: cost_model: there is no 'roof'", "use one of"),
    "wrong type": ("dims: {batch: many}\n", "c.yaml:1: dims.batch: ", "correct the value"),
    "wrong option value": (
        "planner:\n  name: approx_dp\n  strategy: fast\n",
        "c.yaml:3: strategy: ",
        "correct the value",
    ),
    "number as truth": ("strict: 1\n", "c.yaml:1: strict: ", "correct the value"),
    "yes as truth": ("strict: yes\n", "c.yaml:1: strict: ", "correct the value"),
    "octal number": ("dims: {batch: 010}\n", "c.yaml:1: dims.batch: ", "correct the value"),
    "sexagesimal number": ("planner: {name: approx_dp, candidates: 1:30}\n", "c.yaml:1: candidates: ", "correct"),
    "bad budget": ("\nbudget: lots\n", "c.yaml:2: budget: budget 'lots' is not understood", "8GB"),
    "bad overhead": ("max_overhead: some\n", "c.yaml:1: max_overhead: ", "10%"),
    "key twice": ("budget: 1\nbudget: 2\n", "c.yaml:2: 'budget' is given twice", "keep one"),
    "alias": ("dims: &d {batch: 1}\ninput_shapes: *d\n", "YAML aliases are not supported", "write the value out"),
    "list at the top": ("- budget\n", "is not a mapping of keys to values", "budget: 80%"),
    "no YAML": ("budget: [1\n", "no valid YAML", "correct the file"),
    "unknown report key": ("report: {timelin: true}\n", "c.yaml:1: timelin: unknown key", "did you mean 'timeline'?"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_file_line_and_remedy(fault: str, tmp_path: Path) -> None:
    text, message, hint = FAULTS[fault]
    with pytest.raises(UsageError) as caught:
        load_config(written(tmp_path, text))
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_python_tag_is_text_not_code(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mode: there is no"):
        load_config(written(tmp_path, "mode: !!python/object/apply:os.getcwd []\n".replace(" []", " x")))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"budget: \xff", "no valid UTF-8 at byte 8"), (b"a: " + b"[" * 5000, "nested too deeply")],
)
def test_a_broken_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load_config(path)


def test_a_file_of_more_than_ten_megabytes_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, "budget: 80%\n")
    with path.open("ab") as file:
        file.truncate(LARGEST_CONFIG + 1)
    with pytest.raises(UsageError, match=r"has 10\.00 MB, more than the 10\.00 MB that are read") as caught:
        load_config(path)
    assert caught.value.hint == "is this the right file?"
    with pytest.raises(UsageError, match="are read"):
        load_measurements(path)


def test_a_missing_file_lists_what_comes_with_remat() -> None:
    with pytest.raises(UsageError) as caught:
        load_config(Path("aprox_dp"))
    assert caught.value.hint == "did you mean 'approx_dp'?"


@pytest.mark.parametrize("name", shipped_names("configs"))
def test_every_shipped_config_loads_and_its_planner_is_built(name: str) -> None:
    choice = load_config(Path(name)).request.planner
    assert choice is not None
    assert isinstance(choice.built, PLANNERS[choice.name])


def test_every_planner_has_a_shipped_config() -> None:
    shipped = (load_config(Path(name)).request.planner for name in shipped_names("configs"))
    assert {choice and choice.name for choice in shipped} == set(PLANNERS)


@pytest.mark.parametrize("name", shipped_names("configs/devices"))
def test_every_shipped_device_is_right_though_it_is_not_checked_each_time(name: str) -> None:
    assert load_device(name) == checked(Device, read_yaml(ROOT / "configs" / "devices" / f"{name}.yaml"))


def test_a_shipped_device_is_read_without_what_checks_those_of_users() -> None:
    script = "import sys, remat_cli.config as c; c.load_device('a100'); print('pydantic' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "False"


def test_the_devices_that_are_promised_are_there() -> None:
    assert {"generic", "v100", "a100", "h100", "h200", "gh200", "laptop-cpu", "edge-npu"} <= set(
        shipped_names("configs/devices")
    )


def test_an_unknown_device_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        load_device("a1000")
    assert caught.value.hint == "did you mean 'a100'?"


def test_options_from_the_command_line_are_typed_like_those_of_a_file() -> None:
    options = dict(parse_option(text) for text in ("strategy=time", "candidates=3", "time_limit=0.5"))
    assert PlannerChoice("approx_dp", options).built == ApproxDP(strategy=Strategy.TIME, candidates=3, time_limit=0.5)


@pytest.mark.parametrize("text", ["strategy", "=time", ""])
def test_an_option_needs_key_and_value(text: str) -> None:
    with pytest.raises(UsageError, match="is not understood"):
        parse_option(text)


def test_a_planner_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no 'keepall'"):
        named_planner("keepall")


def test_schemas_name_every_option_of_every_planner() -> None:
    schemas = planner_schemas()
    assert schemas.keys() == PLANNERS.keys()
    assert schemas["approx_dp"]["properties"].keys() == {
        "strategy",
        "budget_model",
        "liveness",
        "time_slots",
        "candidates",
        "moves",
        "time_limit",
    }


def test_a_planner_without_options_is_made_without_the_library_that_checks_them() -> None:
    script = "import sys, remat_cli.config as c; c.PlannerChoice('auto').built; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "False"
