"""PyTorch: steps captured, planned, and run as planned.

The rooms, lowest first: `capture` reads a step as a graph, `memory` measures and follows what runs, `programs` writes
schedules as the graphs that torch runs, `plan` asks for plans and chooses among them, `run` is what users call,
`checkpoints` writes plans in the words of other trainers.
"""
