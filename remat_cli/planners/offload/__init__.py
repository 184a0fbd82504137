"""Offload: priced cuts with a bound, then large neighbourhood search."""
