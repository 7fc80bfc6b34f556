"""What a store can do: one contract, and the engines that keep it.

Never knows what the objects mean.
"""
