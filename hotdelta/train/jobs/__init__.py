"""Several trainers that save together: who belongs to the job, and how all of them stop at one moment.

They agree through files beside the chain. Never touches weights.
"""
