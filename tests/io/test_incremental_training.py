"""Training that was saved and went on in a new process is training that never stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.io as hio
from hotdelta.io.model_state import state_of
from tests.io.models import bits, every_class
from tests.io.resumed_training import FRESH_SEED, STEPS, predict
from tests.keras.small_models import fit

# As in the processes that go on: the graph optimizer changes the last bits.
pytestmark = [pytest.mark.I1, pytest.mark.optimized]


def test_a_new_process_goes_on_as_if_training_had_never_stopped(tmp_path: Path) -> None:
    model = every_class()
    fit(model, STEPS, seed=1)
    hio.save_persistables(model, tmp_path)
    fit(model, STEPS, seed=2)

    assert in_a_new_process("train", tmp_path) == {key: value.hex() for key, value in bits(model).items()}


def in_a_new_process(task: str, directory: Path) -> Any:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.io.resumed_training", task, str(directory)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(ran.stdout)


def test_any_subset_loaded_in_a_new_process_predicts_as_if_it_were_assigned(tmp_path: Path) -> None:
    trained, fresh = every_class(), every_class(seed=FRESH_SEED)
    fit(trained, STEPS, seed=1)
    values = {model: {held.key: held for held in state_of(model).variables} for model in (trained, fresh)}
    keys = [key for key, held in values[trained].items() if held.info.is_persistable]
    untrained = {key: np.array(values[fresh][key].read()) for key in keys}
    random, expected = np.random.default_rng(7), []
    for number in range(20):
        chosen = {key for key in keys if random.random() < 0.5} or {keys[0]}
        hio.save_vars(trained, tmp_path / f"{number:02}", chosen)
        for key in keys:
            values[fresh][key].prepare_write()(
                values[trained][key].read() if key in chosen else untrained[key]
            )
        expected.append([sorted(chosen), predict(fresh)])

    assert in_a_new_process("predict", tmp_path) == expected
