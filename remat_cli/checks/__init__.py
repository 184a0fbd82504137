"""What `remat check` does: a project's models held to their budgets, limits and baseline, and what would help."""
