"""Splitting: a graph -> the same graph with a region of it in several parts, before it is planned."""

from remat_cli.splitting.cuts import Split, cuts_in_words, original, read_cuts, regions_in_words, written_cuts
from remat_cli.splitting.regions import Region, RowOp, region_of, region_to_split, runs_in_one_go
from remat_cli.splitting.rows import SUM, Axis, Part, bounds

__all__ = [
    "SUM",
    "Axis",
    "Part",
    "Region",
    "RowOp",
    "Split",
    "bounds",
    "cuts_in_words",
    "original",
    "read_cuts",
    "region_of",
    "region_to_split",
    "regions_in_words",
    "runs_in_one_go",
    "written_cuts",
]
