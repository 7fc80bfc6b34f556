"""Other ways to train: `hotdelta.compat.v1` in place of TensorFlow 1."""
