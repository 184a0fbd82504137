"""Retention: the sparse need-time model, and bounds for a fixed order."""
