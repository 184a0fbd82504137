"""`remat batch`: many jobs, one file of results, on this machine or a cluster."""
