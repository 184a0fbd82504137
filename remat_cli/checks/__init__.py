"""The work of `remat check`: models held to budgets, limits and a baseline."""
