"""What a TensorFlow 1 graph is made of: variables as the chain sees them, their writers, how look-ups split them.

Reads graphs, and values through Sessions. Never changes a graph, never knows a chain.
"""
