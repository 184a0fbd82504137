"""Runtimes that execute and measure plans: one folder for each."""
