"""Changing a directory: one trainer at a time, commits that are durable, and deleting what nobody needs.

Answers how something becomes, or stops being, part of the chain. Never decides what a model should be at.
"""
