"""A program: loads what another process saved, and prints what comes of it: after more training, or predictions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import hotdelta.io as hio
from tests.io.models import bits, every_class
from tests.keras.small_models import batches, fit

STEPS = 3
FRESH_SEED = 2


def predict(model: Any) -> str:
    inputs, _ = batches(2, seed=9)
    return str(model.predict_on_batch(inputs).tobytes().hex())


def train(directory: Path) -> dict[str, str]:
    """All variables after more steps."""
    model = every_class(seed=99)
    hio.load_persistables(model, directory)
    fit(model, STEPS, seed=2)
    return {key: value.hex() for key, value in bits(model).items()}


def predict_each(directory: Path) -> list[Any]:
    """For each save in the directory: what was loaded into a fresh model, and what it predicts."""
    found = []
    for save in sorted(directory.iterdir()):
        model = every_class(seed=FRESH_SEED)
        loaded = hio.load_vars(model, save, strict=False).loaded
        found.append([sorted(loaded), predict(model)])
    return found


if __name__ == "__main__":
    task, place = sys.argv[1:]
    print(json.dumps({"train": train, "predict": predict_each}[task](Path(place))))
