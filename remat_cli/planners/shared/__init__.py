"""Tools shared by planners: sequences, stages, orders, chains, solvers."""
