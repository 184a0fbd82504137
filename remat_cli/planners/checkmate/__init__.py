"""Staged plans by integer programming: the program, its relaxation, and the solvers (Jain et al. 2020, Checkmate)."""
