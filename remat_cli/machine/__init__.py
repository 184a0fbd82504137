"""The machine: its limits and cores, its compiler, and requests to end."""
