"""Which models are served here, and which of them a request means?

Every protocol asks this room. It never knows how a request was written, or how a model is updated.
"""
