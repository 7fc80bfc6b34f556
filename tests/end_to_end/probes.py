"""The pairs of user and item that trainer and server are both asked about."""

NUM_USERS = 50
NUM_ITEMS = 20
PROBES = [(3, 5), (3, 6), (4, 5), (49, 19), (0, 0)]
