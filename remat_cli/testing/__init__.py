"""Contract tests of planners, for those of other packages: `python -m remat_cli.testing NAME...`."""
