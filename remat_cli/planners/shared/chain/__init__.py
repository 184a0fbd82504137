"""A training graph as a chain of layers: what `rotor` and `pofo` plan."""
