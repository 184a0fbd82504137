"""remat: plans the rematerialization of a computation graph under a memory budget, and proves the plan."""

__version__ = "0.1.0"
