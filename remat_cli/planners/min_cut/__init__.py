"""Plans of very large graphs: priced cuts for a first plan and a bound, then large neighbourhood search."""
