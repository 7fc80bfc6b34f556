"""From what a directory holds to what is served: watch, plan, take one step after the other, remember what is broken.

Runs on the updater's thread. Never judges values: `checks` does.
"""
