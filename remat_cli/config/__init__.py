"""Configuration: YAML files and options to checked settings, with the file and line of what is wrong.

Everything that a user can set by name goes through here, from whichever side it comes: a config file, the command line,
a device profile, a table of measured times. Files:

- `document`: YAML with the place of each value, and dataclasses built from it;
- `graph_options`: how a file becomes the graph that is planned; `request`: which plan is wanted. A field of either is
  a setting, declared there and nowhere else;
- `planner_choice`: a planner and its options;
- `run_config`: a whole config file;
- `shipped`: files that come with remat, device profiles among them;
- `measurements`: what `remat measure` wrote, and plain tables of times.
"""

from remat_cli.config.document import Document, checked, in_yaml, placed, read_yaml, said_in, unknown_name
from remat_cli.config.graph_options import GIVEN_COSTS, GraphOptions, beside_file
from remat_cli.config.measurements import load_measurements, measurements_bytes
from remat_cli.config.planner_choice import (
    DEFAULT_PLANNER,
    PlannerChoice,
    check_is_option,
    named_planner,
    parse_option,
    planner_schemas,
    planner_section,
)
from remat_cli.config.request import Request
from remat_cli.config.run_config import ReportOptions, RunConfig, load_config
from remat_cli.config.shipped import beside, load_device, shipped_names

__all__ = [
    "DEFAULT_PLANNER",
    "GIVEN_COSTS",
    "Document",
    "GraphOptions",
    "PlannerChoice",
    "ReportOptions",
    "Request",
    "RunConfig",
    "beside",
    "beside_file",
    "check_is_option",
    "checked",
    "in_yaml",
    "load_config",
    "load_device",
    "load_measurements",
    "measurements_bytes",
    "named_planner",
    "parse_option",
    "placed",
    "planner_schemas",
    "planner_section",
    "read_yaml",
    "said_in",
    "shipped_names",
    "unknown_name",
]
