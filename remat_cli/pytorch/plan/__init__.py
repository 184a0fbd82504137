"""Plans for captured graphs: requested, measured, chosen, recorded.

Plans are chosen among blocks, and adapted to sizes.
"""
