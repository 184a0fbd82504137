"""Plans for captured graphs: asked for, measured, chosen among blocks, adapted to sizes, kept on record."""
