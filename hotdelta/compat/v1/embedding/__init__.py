"""How do TF1 scripts have tables without a fixed vocabulary? DeepRec's embedding variables, over `train/keys`.

The table, its look-ups in a graph, its slots, and how a Session reaches them. Never saves or restores anything.
"""
