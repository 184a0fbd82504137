"""The default: a portfolio of planners under one time limit."""
