"""The names that scripts use, with incremental checkpoints: Saver, Scaffold, hooks and Sessions of every make.

Translates TensorFlow's arguments for the rooms below. Keeps no state of a chain itself.
"""
