"""Tables with keys instead of a fixed vocabulary: which row has a key, and what a new one begins with.

Builds graphs of stock operations over variables that are saved like any other. Never decides when something is saved.
"""
