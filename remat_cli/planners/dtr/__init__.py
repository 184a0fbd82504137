"""Greedy eviction for any graph (Kirisame et al. 2021, DTR)."""
