"""Planners over lower sets of a training graph's forward part.

Kusumoto et al. 2019, and Chen et al. 2016.
"""
