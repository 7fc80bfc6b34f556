"""How a gRPC call comes in and its answer goes out: the port, the limits, the messages, the status of every error.

Never knows what is asked: that is translated by the protocols.
"""
