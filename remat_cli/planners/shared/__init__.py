"""Tools of several planners: sequences of runs, stages, orders, chains, the forward graph, and the solvers."""
