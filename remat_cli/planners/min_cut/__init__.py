"""Min cut: priced cuts, then large neighbourhood search."""
