"""What a directory holds and what follows from it: listings, trust, verification, lineage, plans.

Reads and decides. Never writes, and never deletes what it finds wrong.
"""
