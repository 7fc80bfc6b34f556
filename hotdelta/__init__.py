"""hotdelta: serve embedding models that are seconds old.

Importing this package imports neither TensorFlow nor Keras; `hotdelta.train` and `hotdelta.keras` do.
"""

__version__ = "0.1.0"
