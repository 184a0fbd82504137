"""Schedules as programs: the two graphs that torch runs, one for each pass, step by step as planned."""
