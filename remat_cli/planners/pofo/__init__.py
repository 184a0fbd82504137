"""Recomputation and offloading on a chain (Beaumont et al. 2021, POFO)."""
