"""Reports: what is shown on a terminal, summed up as JSON, and written to files."""
