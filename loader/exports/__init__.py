"""Which version of the export is served: finding it, loading it beside, checking its values, swapping it in.

Never applies a delta to a model that is serving.
"""
