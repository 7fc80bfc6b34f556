"""Which rows and keys did a commit change: diff, key.

Reads values, of files that were verified before, in slices, so that tables of any size fit. Never writes.
"""
