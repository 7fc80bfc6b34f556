"""What scripts of DeepRec use beside TensorFlow 1: optimizers, the work queue, switches for speed.

Built of stock operations. Never knows a chain: what it trains is recorded and saved as whatever else a graph holds.
"""
