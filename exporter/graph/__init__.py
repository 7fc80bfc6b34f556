"""Reading and rewriting the graph of a signature: who uses a variable, look-ups as row gathers, input names.

Works on nodes and functions. Never touches a value.
"""
