"""The default planner: a portfolio under one time limit."""
