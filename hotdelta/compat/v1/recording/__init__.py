"""Makes a training graph ready for deltas: recorders beside its writers, operations that hold and write the rows.

Changes the graph before it is finalized. Never decides when to save.
"""
