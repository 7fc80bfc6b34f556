"""Connections, limits, bodies, errors and the description of the API: HTTP as clients of model servers need it.

Never looks into a request's content, never asks the model.
"""
