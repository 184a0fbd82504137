"""The optimizer's update as a part of the planned step.

It runs on a part of the parameters at a time, by the optimizer's own step, and state may wait on the host in between.
"""
