"""The serving graph that a trainer leaves in its directory, so that exporting needs no training script.

Traces and stores signatures. Never exports, and never saves a value.
"""
