"""Costs: the work of ops, and their times under a cost model.

`annotate_work` sets the work, `apply_costs` the times.
"""

from collections.abc import Mapping

from remat_cli.costs.measured import Measured, Measurements
from remat_cli.costs.model import CostModel, Flops, Unit, apply_costs
from remat_cli.costs.roofline import Device, Roofline
from remat_cli.costs.work import annotate_work

# A cost model is a frozen dataclass whose fields are its parameters: a device, or a table.
COST_MODELS: Mapping[str, type[CostModel]] = {
    "unit": Unit,
    "flops": Flops,
    "roofline": Roofline,
    "measured": Measured,
}

__all__ = [
    "COST_MODELS",
    "CostModel",
    "Device",
    "Flops",
    "Measured",
    "Measurements",
    "Roofline",
    "Unit",
    "annotate_work",
    "apply_costs",
]
