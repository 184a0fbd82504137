"""Plans run and measured in PyTorch.

`planned` is what users call: it has torch.compile hand over each joint graph, `choice` finds the schedule for it, and
`program` writes that as the graphs that run. `execution` runs a step as planned and unplanned and holds the two against
each other; `memory` measures them.
"""
