"""The signatures that every export has: restore a full, take a delta, stage, apply. Checks precede the first write.

Builds graphs. Never knows where values come from.
"""
