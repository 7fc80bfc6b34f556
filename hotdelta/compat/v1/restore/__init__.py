"""From a directory into a Session: the full, then every delta after it, verified and trusted like everywhere.

Never writes to the directory.
"""
