"""A Keras model as it is served: named inputs, row gathers, vocabularies, the schema of all that.

Traces. Never writes a file: hotdelta.train.serving does.
"""
