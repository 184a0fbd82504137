"""Small graphs, settled: the shortest path through all states that a device can be in."""
