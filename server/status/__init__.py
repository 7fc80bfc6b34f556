"""What is served, whether the process lives and whether it can answer.

Only reads what the loader says of itself.
"""
