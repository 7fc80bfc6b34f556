"""The seed of this run: printed when a test fails, and given again to replay it."""

from __future__ import annotations

import os
import random
import zlib

VARIABLE = "HOTDELTA_CHAOS_SEED"
SEED = int(os.environ.get(VARIABLE) or random.SystemRandom().randrange(2**32))


def seeded(name: str) -> random.Random:
    """A source of chance for one test, the same for the same seed. What it prints is shown when the test fails."""
    print(f"replay with {VARIABLE}={SEED}")
    return random.Random(SEED ^ zlib.crc32(name.encode()))
