"""Going on from a state on disk: whether the model fits it, loading its values, the trainer's progress there.

Checks everything first. Never changes a file, and changes the model only when all of it fits.
"""
