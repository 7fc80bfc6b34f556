"""What of a model is saved, and under which keys: variables, tables with their slots, rules for ids.

Plain data about a model. Never reads a row, never looks at a directory.
"""
