"""One configuration for every trainer: bounds, when a full is due, and that the trainers take it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Kind
from hotdelta.errors import ConfigurationError
from hotdelta.train import CheckpointConfig, DeltaWriter
from hotdelta.train.checkpoint_config import settle
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.save.schedule import Progress, SaveAtSteps, SaveEvery
from tests.keras.small_models import fit, manifests, small_model


@pytest.mark.parametrize(
    "field, value, bound",
    [
        ("checkpoint_dir", "", "give the path of a directory"),
        ("checkpoint_dir", None, "give the path of a directory"),
        ("max_num_checkpoints", 0, "at least 1"),
        ("epoch_interval", 0, "at least 1"),
        ("step_interval", -3, "at least 1"),
        ("step_interval", 2.5, "a whole number"),
        ("step_interval", True, "a whole number"),
        ("save_secs", 0, "seconds above 0"),
        ("save_secs", float("nan"), "seconds above 0"),
        ("save_incremental_secs", -1.0, "seconds above 0"),
        ("save_incremental_secs", "5", "seconds above 0"),
        ("save_incremental_steps", 0, "at least 1"),
    ],
)
def test_a_bad_value_is_refused_with_the_bound_it_breaks(field: str, value: Any, bound: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{field} is .*{bound}"):
        CheckpointConfig(**{"checkpoint_dir": "run", field: value})


def test_numbers_of_numpy_are_numbers() -> None:
    config = CheckpointConfig("run", step_interval=np.int64(4), save_secs=np.float32(2.5))  # type: ignore[arg-type]
    assert config.writer_options().full == SaveAtSteps(1, 4, 2.5)


def test_a_config_cannot_be_changed() -> None:
    config = CheckpointConfig("run")

    with pytest.raises(dataclasses.FrozenInstanceError):
        config.step_interval = 5  # type: ignore[misc]


def due_steps(
    config: CheckpointConfig, *, epochs: int, steps: int, steps_at_once: int = 1
) -> list[tuple[int, int]]:
    """Epoch and step (both from 0) at which a full is due, when each is taken at once and no time passes."""
    policy = config.writer_options().full
    found, since = [], 0
    for epoch in range(epochs):
        for step in range(steps_at_once, steps + 1, steps_at_once):
            since += steps_at_once
            if policy.is_due(Progress(0.0, since, 0, 0, epoch, step)):
                found.append((epoch, step - steps_at_once))
                since = 0
    return found


def test_a_full_is_due_in_every_nth_epoch_at_every_mth_step_of_it_counted_from_0() -> None:
    config = CheckpointConfig("run", epoch_interval=2, step_interval=3)

    assert due_steps(config, epochs=4, steps=7) == [(0, 0), (0, 3), (0, 6), (2, 0), (2, 3), (2, 6)]


def test_steps_that_are_made_at_once_pass_over_no_save() -> None:
    config = CheckpointConfig("run", step_interval=10)

    assert due_steps(config, epochs=1, steps=40, steps_at_once=8) == [(0, 0), (0, 8), (0, 16), (0, 24)]


def test_an_epoch_that_is_shorter_than_the_interval_is_saved_once() -> None:
    assert due_steps(CheckpointConfig("run"), epochs=3, steps=4) == [(0, 0), (1, 0), (2, 0)]


def test_a_full_that_something_else_asked_for_delays_none_and_repeats_none() -> None:
    policy = SaveAtSteps(epoch_interval=1, step_interval=10)

    assert not policy.is_due(Progress(0.0, steps=4, epochs=0, touched_rows=0, epoch=0, step_in_epoch=9))
    assert policy.is_due(Progress(0.0, steps=6, epochs=0, touched_rows=0, epoch=0, step_in_epoch=11))


def test_seconds_count_apart_from_epochs_and_steps() -> None:
    policy = SaveAtSteps(epoch_interval=2, step_interval=10, seconds=60)

    assert policy.is_due(Progress(60.0, steps=1, epochs=0, touched_rows=0, epoch=1, step_in_epoch=5))
    assert not policy.is_due(Progress(59.0, steps=1, epochs=0, touched_rows=0, epoch=1, step_in_epoch=1))


def test_the_intervals_of_deltas_and_what_is_kept_are_taken_over() -> None:
    config = CheckpointConfig("run", 7, save_incremental_secs=2.0, save_incremental_steps=4)

    options = config.writer_options()

    assert options.delta == SaveEvery(seconds=2.0, steps=4)
    assert options.keep_fulls == 7


@pytest.mark.parametrize("given", ["run", CheckpointConfig("run")])
def test_a_program_that_changes_its_directory_goes_on_with_the_same_chain(
    given: str | CheckpointConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert settle(given, WriterOptions())[0] == tmp_path / "run"


def test_the_keras_callback_takes_a_config(tmp_path: Path) -> None:
    config = CheckpointConfig(
        tmp_path, max_num_checkpoints=2, epoch_interval=2, step_interval=3, save_incremental_steps=1
    )
    callback = hk.DeltaCheckpoint(config, serving_graph=False)
    model = small_model()

    fit(model, 4, callback, epochs=4)
    callback.close()

    # Of steps 0 (at the start), 1, 4 (the first epoch), 9 and 12 (the third), the newest two. A full is copied while
    # training goes on, so that it may close some steps after it was due.
    fulls = [manifest.step for manifest in manifests(tmp_path, Kind.FULL)]
    assert len(fulls) == 2
    assert fulls[-1] >= 12
    assert [manifest.step for manifest in manifests(tmp_path, Kind.DELTA)][-1] == 16


def test_a_second_fit_begins_its_epochs_again(tmp_path: Path) -> None:
    config = CheckpointConfig(tmp_path, max_num_checkpoints=100, epoch_interval=2)
    callback = hk.DeltaCheckpoint(config, serving_graph=False)
    model = small_model()

    for number in range(3):
        fit(model, 2, callback, seed=number)
    callback.close()

    assert len(manifests(tmp_path, Kind.FULL)) == 1 + 3


def test_the_writer_of_custom_loops_takes_a_config(tmp_path: Path) -> None:
    weight = tf.Variable([0.0])
    with DeltaWriter(CheckpointConfig(tmp_path, 9, step_interval=2), {"weight": weight}) as writer:
        for _ in range(4):
            weight.assign_add([1.0])
            writer.step()
        writer.end_epoch(0)

    assert len(manifests(tmp_path, Kind.FULL)) == 1 + 2


def test_intervals_beside_a_config_are_refused(tmp_path: Path) -> None:
    config = CheckpointConfig(tmp_path)

    with pytest.raises(ConfigurationError, match="given twice"):
        hk.DeltaCheckpoint(config, save_steps=5)
    with pytest.raises(ConfigurationError, match="given twice"):
        DeltaWriter(config, {"weight": tf.Variable(0.0)}, keep_fulls=2)
