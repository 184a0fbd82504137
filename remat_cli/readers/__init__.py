"""Readers: one file and one line in READERS for each format."""
