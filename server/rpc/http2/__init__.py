"""HTTP/2 as far as gRPC needs it of a server: connections, their streams, and who may send how much.

Knows no service, and no message but its length. In the event loop, without a thread: the C core of gRPC needs three.
"""
