"""Many jobs, one file of results: what `remat batch` does, on this machine or on a cluster."""
