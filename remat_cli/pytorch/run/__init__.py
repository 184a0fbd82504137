"""Planned steps that run: `planned` is called by users, `execution` holds a step's results against eager's."""
