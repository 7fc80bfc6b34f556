"""Keeps a local directory in step with a store, for a server that follows the directory and knows no store.

Answers what of the store should be here, brings it, and removes what nobody needs any more. Never decides what is
served: the loader does, by what it finds.
"""
