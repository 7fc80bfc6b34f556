"""What is written into the chain's own files: positions, manifests, schemas, names.

Values that check themselves and know their text form. Never opens a file, never decides what follows what.
"""
