"""What is done with chains in stores: copying them, and orders to the whole fleet that follows one.

Never speaks to a server, and trains nothing.
"""
