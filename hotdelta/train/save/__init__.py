"""When to save, and how a cut becomes a commit: schedule, clocks, writing threads, fulls that do not stop training.

`ChainTrainer` is the engine that Keras and loops drive. Never decides which rows changed.
"""
