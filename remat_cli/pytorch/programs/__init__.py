"""Schedules as programs: a graph for torch for each pass.

The graphs run the planned steps one by one.
"""
