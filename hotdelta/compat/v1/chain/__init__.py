"""One Session's chain: cuts, commits, progress of workers, and when each is due.

Belongs to the Session that trains. Never builds a graph.
"""
