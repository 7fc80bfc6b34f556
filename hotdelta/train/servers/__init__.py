"""Reaching parameter servers: their addresses, whether they answer, fetching from them without blocking others.

Knows tasks and tensors. Never knows tables, cuts or files.
"""
