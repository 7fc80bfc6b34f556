"""What does a running server say, and what is it told: status, tail, and the orders.

Speaks HTTP alone: never reads a chain, and gives no order that the server could not refuse.
"""
