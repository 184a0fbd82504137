"""Configuration: checked settings from YAML files and options.

Errors name file and line.

Everything that a user can set by name goes through here, from whichever side it comes: a config file, the command line,
a device profile, a table of measured times. Files:

- `document`: YAML with the place of each value, and dataclasses built from it;
- `graph_options`: options of reading a graph from a file; `request`: a request for a plan. A field of either is a
  setting, declared there and nowhere else;
- `planner_choice`: a planner and its options;
- `run_config`: a whole config file;
- `shipped`: files that come with remat, device profiles among them;
- `measurements`: files of `remat measure`, and plain tables of times.
"""

from remat_cli.config.document import Document, checked, in_yaml, placed, read_yaml, said_in, unknown_name
from remat_cli.config.graph_options import GIVEN_COSTS, GraphOptions, with_paths_from
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
from remat_cli.config.shipped import file_or_shipped, load_device, shipped_names

__all__ = [
    "DEFAULT_PLANNER",
    "GIVEN_COSTS",
    "Document",
    "GraphOptions",
    "PlannerChoice",
    "ReportOptions",
    "Request",
    "RunConfig",
    "check_is_option",
    "checked",
    "file_or_shipped",
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
    "with_paths_from",
]
