"""Staged plans by integer programming (Jain et al. 2020, Checkmate)."""
