"""Retention intervals in constraint programming (Bartan et al. 2023, MOCCASIN)."""
