"""Addresses for buffers: one block of memory in which all that is needed together lies apart."""
