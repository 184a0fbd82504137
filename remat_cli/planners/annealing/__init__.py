"""Annealing: a joint search over order and recomputation."""
