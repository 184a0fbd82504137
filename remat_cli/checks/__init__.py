"""The work of `remat check`: a project's models held to their budgets, limits and baseline, and what would help."""
