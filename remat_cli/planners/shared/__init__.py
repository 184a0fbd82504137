"""What planners share: sequences of runs, stages, orders, chains, the forward graph, and the solvers."""
