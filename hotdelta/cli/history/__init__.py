"""What does a directory say of its commits: log, show, chain, describe, verify, compact.

Each is asked of manifests that are trusted (`opened_chain`). Only `compact` writes, by the rules of whoever saves.
"""
