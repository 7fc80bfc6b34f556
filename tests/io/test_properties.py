"""For any subset of variables: saved and loaded into a fresh model, it predicts, and trains on, as it should."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hotdelta.io as hio
from hotdelta.io.model_state import HeldVariable, state_of
from tests.io.models import Bits, bits, different, every_class
from tests.keras.small_models import batches, fit

SETTINGS = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


class Pair:
    """Two models of one structure: one that was trained, and a fresh one that is put back before every example."""

    def __init__(self) -> None:
        self.trained, self.fresh = every_class(seed=1), every_class(seed=2)
        for model in (self.trained, self.fresh):
            fit(model, 1)
        self.inputs, _ = batches(2, seed=9)
        self.trained_values, self.fresh_values = _values(self.trained), _values(self.fresh)
        self.keys = list(self.trained_values)

    def put_back(self) -> None:
        _assign(self.trained, self.trained_values)
        _assign(self.fresh, self.fresh_values)


def _held(model: object) -> list[HeldVariable]:
    return [held for held in state_of(model).variables if held.info.is_persistable]


def _values(model: object) -> dict[str, np.ndarray]:
    return {held.key: np.array(held.read()) for held in _held(model)}


def _assign(model: object, values: dict[str, np.ndarray]) -> None:
    for held in _held(model):
        if held.key in values:
            held.prepare_write()(values[held.key])


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair()


@SETTINGS
@given(data=st.data())
def test_any_subset_loaded_into_a_fresh_model_predicts_as_if_it_were_assigned(
    pair: Pair, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(pair.keys), min_size=1, unique=True))
    pair.put_back()
    with tempfile.TemporaryDirectory() as directory:
        hio.save_vars(pair.trained, directory, chosen)
        hio.load_vars(pair.fresh, directory, chosen)
    loaded = bits(pair.fresh)
    predicted = pair.fresh.predict_on_batch(pair.inputs)

    _assign(pair.fresh, {**pair.fresh_values, **{key: pair.trained_values[key] for key in chosen}})

    assert not different(loaded, bits(pair.fresh))
    assert predicted.tobytes() == pair.fresh.predict_on_batch(pair.inputs).tobytes()


@SETTINGS
@given(steps=st.integers(0, 3), seed=st.integers(0, 1000))
def test_persistables_loaded_into_a_fresh_model_make_the_same_next_steps(
    pair: Pair, steps: int, seed: int
) -> None:
    pair.put_back()
    fit(pair.trained, steps or 1, seed=seed)
    with tempfile.TemporaryDirectory() as directory:
        hio.save_persistables(pair.trained, Path(directory))
        hio.load_persistables(pair.fresh, Path(directory))

    for model in (pair.trained, pair.fresh):
        fit(model, 2, seed=seed + 1)

    found: list[Bits] = [bits(model) for model in (pair.trained, pair.fresh)]
    assert not different(*found)
