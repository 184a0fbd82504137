"""PyTorch: steps captured, planned, and run as planned.

The rooms, lowest first: `capture` reads a step as a graph, `memory` measures and follows what runs, `update` runs an
optimizer's step in parts, `programs` writes schedules as the graphs that torch runs, `plan` asks for plans and chooses
among them, `run` has the functions that users call, `checkpoints` writes plans for other trainers.
"""
