"""Other model servers around the same SavedModel, each as its own documentation has it: what `serving` compares with.

Each program is run by the Python of an environment of its own (`environments`), as
`python -m benchmarks._peers.NAME EXPORT PORT`, and never imports hotdelta.
"""
