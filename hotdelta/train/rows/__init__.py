"""Which rows changed since the last cut (touched, compared, written from outside, scrubbed), and the cut itself.

Runs on the training thread, between two steps. Never writes a file.
"""
