"""The inference part of a TensorFlow 1 graph, turned into what `exporter` exports.

Never trains and never restores.
"""
