"""Row-wise optimizers: a step costs the rows it touches, and records them.

Equal to Keras's own where those change only the rows of the gradient. Never looks at a checkpoint.
"""
