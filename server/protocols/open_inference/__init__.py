"""The Open Inference Protocol (version 2), as clients of KServe and Triton speak it, over HTTP.

With the extension for binary tensors, whose bytes become arrays without a look at single values.
"""
