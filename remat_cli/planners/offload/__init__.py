"""Keep, recompute or offload, on any graph: priced cuts with a bound, then large neighbourhood search."""
