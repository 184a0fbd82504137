"""Optimal plans of small graphs: a shortest path through all device states."""
