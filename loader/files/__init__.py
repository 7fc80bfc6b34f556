"""The files of a commit as bytes of our own: opened safely, read once, verified, in the shape that the model takes.

Answers what is in a file. Never decides whether it may be served.
"""
