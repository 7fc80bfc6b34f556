"""TensorFlow's tensor bundles, read and written without TensorFlow: index, data files, digests, parts.

Answers which bytes a tensor is. Never commits anything: a bundle without a manifest does not exist for readers.
"""
