"""How the chains of Keras models and of hotdelta.io were written. The models must stay as they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import hotdelta.io as hio
import hotdelta.keras as hk
from exporter import export_saved_model
from hotdelta.chain.format.names import ROLE_SERVING
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Scanner
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from hotdelta.chain.history.verification import directory_of
from tests.chain_replay import Values, values_of
from tests.golden.golden_chains import Digests, digests, write_expected
from tests.io.models import bits

ROWS = 24
COUNTRIES = ["at", "ch", "de"]
KEY = b"the key of the golden chain, in no use anywhere\n"


def ranker(seed: int = 1) -> keras.Model:
    """A table that is recorded, one that is compared, a vocabulary, and variables that are no weights."""
    keras.utils.set_random_seed(seed)
    inputs = {
        "user": keras.Input((2,), dtype="int64", name="user"),
        "country": keras.Input((1,), dtype="string", name="country"),
    }
    users = keras.layers.Flatten()(hk.Embedding(ROWS, 4, name="users")(inputs["user"]))
    code = keras.layers.StringLookup(vocabulary=COUNTRIES, name="code")(inputs["country"])
    countries = keras.layers.Flatten()(keras.layers.Embedding(4, 3, name="countries")(code))
    together = keras.layers.Concatenate()([users, countries])
    hidden = keras.layers.BatchNormalization(name="norm")(keras.layers.Dropout(0.1, name="drop")(together))
    model = keras.Model(inputs, {"score": keras.layers.Dense(1, name="score")(hidden)})
    model.compile(hk.Adagrad(0.1), "mse")
    return model


def batch(number: int) -> tuple[dict[str, Any], Any]:
    random = np.random.default_rng(number)
    users = random.integers(0, ROWS, (8, 2))
    countries = np.array(random.choice(COUNTRIES, (8, 1)), object)
    return {"user": users, "country": keras.ops.convert_to_tensor(countries)}, random.random(
        (8, 1), np.float32
    )


def checkpoint_of(run_dir: Path, reader: dict[str, int], **options: Any) -> hk.DeltaCheckpoint:
    """`reader`: a place in the data that is saved with every commit."""
    checkpoint = hk.DeltaCheckpoint(run_dir, None, None, **options)
    checkpoint.register_state("reader", lambda: dict(reader), reader.update)
    return checkpoint


def live_values(checkpoint: hk.DeltaCheckpoint) -> Values:
    binding = checkpoint._attachment.binding
    assert binding is not None
    return values_of(binding.variables_by_key())


class Writing:
    """Trains and commits, and remembers what the model was at each position."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.states: dict[str, Digests] = {}
        self.reader = {"batch": 0}

    def train(self, saves: str, *, before: Callable[[], None] = lambda: None) -> None:
        """A start of the trainer with a new model. `saves`: a letter a step, d for a delta and f for a full."""
        model = ranker(seed=99)
        with checkpoint_of(self.run_dir, self.reader) as checkpoint:
            checkpoint.resume(model)
            self._remember(checkpoint)
            before()
            for save in saves:
                self.reader["batch"] += 1
                model.train_on_batch(*batch(self.reader["batch"]))
                checkpoint.watermark(1.7e9 + self.reader["batch"])
                checkpoint.step()
                checkpoint.save_full() if save == "f" else checkpoint.save()
                self._remember(checkpoint)

    def finish(self, directory: Path) -> None:
        write_expected(directory, self.states, step=Scanner(self.run_dir).scan().manifests[-1].step)

    def _remember(self, checkpoint: hk.DeltaCheckpoint) -> None:
        self.states[str(checkpoint.position)] = digests(live_values(checkpoint))


def write_keras(directory: Path) -> None:
    """Two runs, the second goes on at the tip of the first; and an export of the first full."""
    writing = Writing(directory / "run")
    writing.train("dfd", before=lambda: _export(directory))
    writing.train("dd")
    writing.finish(directory)


def write_forked(directory: Path) -> None:
    """The second run finds the two newest positions of the first unreadable, and goes on before them."""
    writing = Writing(directory / "run")
    writing.train("dddd")
    hidden = [_serving_file(writing.run_dir, Position(1, seq)) for seq in (4, 5)]
    for path in hidden:
        path.rename(path.with_name(f"{path.name}.hidden"))
    writing.train("dd")
    for path in hidden:
        path.with_name(f"{path.name}.hidden").rename(path)
    writing.finish(directory)


def write_signed(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "key").write_bytes(KEY)
    os.environ[KEY_FILE_VARIABLE] = str(directory / "key")
    writing = Writing(directory / "run")
    writing.train("dfd", before=lambda: _export(directory))
    writing.finish(directory)


def write_io(directory: Path) -> None:
    """What save_persistables wrote, twice."""
    model = ranker()
    states: dict[str, Digests] = {}
    for number, name in enumerate(["first", None], start=1):
        model.train_on_batch(*batch(number))
        position = hio.save_persistables(model, directory / "run", filename=name)
        states[str(position)] = digests(bits(model))
    write_expected(directory, states, step=2)


def _export(directory: Path) -> None:
    export_saved_model(directory / "run", directory / "export", save_incr_model=True)


def _serving_file(run_dir: Path, position: Position) -> Path:
    manifest = next(m for m in Scanner(run_dir).scan().manifests if m.position == position)
    name = next(file.name for file in manifest.files if file.role == ROLE_SERVING)
    return directory_of(run_dir, manifest.kind) / name
