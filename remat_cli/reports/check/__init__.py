"""The report of `remat check` in all its forms."""
