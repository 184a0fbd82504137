"""Planned steps that run.

Users call `planned`; `execution` compares a step's results with eager's.
"""
