"""The memory of running steps.

Kernels are measured alone, whole steps are followed, and tensors are copied to the host and back.
"""
