"""A table in memory, wherever its rows lie: in this process, in one copy a replica, in shards on servers.

Answers how rows are read, written and recorded as touched. Never knows a model, a file or a save.
"""
