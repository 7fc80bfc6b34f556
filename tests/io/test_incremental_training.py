"""Training that was saved and went on in a new process is training that never stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import hotdelta.io as hio
from tests.io.models import bits, every_class
from tests.io.resumed_training import STEPS
from tests.keras.small_models import fit


def test_a_new_process_goes_on_as_if_training_had_never_stopped(tmp_path: Path) -> None:
    model = every_class()
    fit(model, STEPS, seed=1)
    hio.save_persistables(model, tmp_path)
    fit(model, STEPS, seed=2)

    resumed = subprocess.run(
        [sys.executable, "-m", "tests.io.resumed_training", str(tmp_path)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        check=True,
    )

    assert json.loads(resumed.stdout) == {key: value.hex() for key, value in bits(model).items()}
