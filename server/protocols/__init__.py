"""How clients of other model servers ask: each room is one protocol, which turns bytes into a request and back.

Never asks the model but through the data plane, and never gives an order.
"""
