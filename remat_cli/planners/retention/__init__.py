"""Our own planner: the sparse need-time model, and bounds for a fixed order."""
