"""Order and recomputation searched together, by simulated annealing over sequences."""
