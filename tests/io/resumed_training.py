"""A program: load what another process saved, train on, and print the digest of every variable."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import hotdelta.io as hio
from tests.io.models import bits, every_class
from tests.keras.small_models import fit

STEPS = 3


def main(directory: Path) -> None:
    model = every_class(seed=99)
    hio.load_persistables(model, directory)
    fit(model, STEPS, seed=2)
    print(json.dumps({key: value.hex() for key, value in bits(model).items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
