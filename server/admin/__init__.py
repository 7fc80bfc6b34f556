"""The operator's orders over HTTP, and who may give them.

Parses, makes one call to the loader, shapes the answer. Never changes anything itself.
"""
