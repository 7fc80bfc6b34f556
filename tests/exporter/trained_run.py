"""A finished run of a Keras model, and what tests look at in its exports."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hotdelta.keras
from hotdelta import signatures as contract
from hotdelta.chain.format.manifest import Manifest
from hotdelta.chain.format.position import Position
from hotdelta.chain.format.schema import Schema
from hotdelta.chain.history.scan import Scanner
from tests.chain_replay import replay

ROWS = 64


def make_model() -> keras.Model:
    inputs = {
        "user": keras.Input((2,), dtype="int64", name="user"),
        "country": keras.Input((1,), dtype="string", name="country"),
    }
    users = keras.layers.Flatten()(hotdelta.keras.Embedding(ROWS, 4)(inputs["user"]))
    code = keras.layers.StringLookup(vocabulary=["at", "ch", "de"])(inputs["country"])
    countries = keras.layers.Flatten()(keras.layers.Embedding(4, 3)(code))
    hidden = keras.layers.BatchNormalization()(keras.layers.Concatenate()([users, countries]))
    return keras.Model(inputs, {"score": keras.layers.Dense(1)(hidden)})


@dataclass(frozen=True)
class Trained:
    """A finished run: its directory, the model as it was at the end, and the positions committed."""

    run_dir: Path
    model: keras.Model
    manifests: tuple[Manifest, ...]

    @property
    def newest(self) -> Manifest:
        return self.manifests[-1]

    def values(self, position: Position, schema: Schema) -> Mapping[str, bytes]:
        return replay(self.run_dir, position, [variable.key for variable in schema.variables])


def train(run_dir: Path) -> Trained:
    model = make_model()
    model.compile(hotdelta.keras.Adagrad(0.1), "mse")
    random = np.random.default_rng(0)
    with hotdelta.keras.DeltaCheckpoint(run_dir, None, None) as checkpoint:
        checkpoint.resume(model)
        for number in range(4):
            batch = {
                "user": random.integers(0, ROWS, (8, 2)),
                "country": tf.constant(random.choice(["at", "ch", "de"], (8, 1)).tolist()),
            }
            model.train_on_batch(batch, random.random((8, 1)))
            checkpoint.step()
            checkpoint.save_full() if number == 1 else checkpoint.save()
    return Trained(run_dir, model, Scanner(run_dir).scan().manifests)


def metadata_of(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / contract.METADATA_FILE).read_text())
    return document


def schema_of(path: Path) -> Schema:
    return Schema.from_json(json.dumps(metadata_of(path)["schema"]).encode())


def values_of(path: Path) -> dict[str, bytes]:
    loaded = tf.saved_model.load(str(path))
    pairs = zip(schema_of(path).variables, loaded.hotdelta_variables, strict=True)
    return {spec.key: variable.numpy().tobytes() for spec, variable in pairs}


def copy_of(trained: Trained, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained.run_dir, tmp_path / "run"))
