"""Addresses for buffers in one block of memory.

Buffers that are needed at the same time do not overlap.
"""
