"""Stored sets over the division tree of an arbitrary computation graph (Feng & Huang 2021)."""
