"""DeltaWriter: the same chain for a custom loop on tf.Module, with any optimizer, or none."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hotdelta.io as hio
import hotdelta.keras as hk
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Scanner
from hotdelta.errors import ConfigurationError, UnsavedError
from hotdelta.train import DeltaWriter
from tests.chain_replay import Values, replay, values_of
from tests.full_disk import small_files_only

ROWS = 30
BY_HAND: dict[str, Any] = {"save_secs": None, "save_incremental_secs": None}


class Ranker(tf.Module):
    """Tables of rank 3 and of rank 1, and a scalar."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        self.tables = [tf.Variable(random.random((ROWS, 2, 3), np.float32), name="deep")]
        self.bias = tf.Variable(random.random(ROWS, np.float32), name="bias")
        self.scale = tf.Variable(1.0, name="scale")

    def loss(self, ids: tf.Tensor) -> tf.Tensor:
        rows = tf.gather(self.tables[0], ids)
        return tf.reduce_sum((tf.reduce_sum(rows, [1, 2]) + tf.gather(self.bias, ids)) * self.scale)


def step_function(ranker: Ranker, optimizer: Any) -> Any:
    @tf.function
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = ranker.loss(ids)
        variables = ranker.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    return step


def test_steps_of_workers_that_train_at_once_are_all_counted(tmp_path: Path) -> None:
    ranker, optimizer = Ranker(), keras.optimizers.SGD(0.1)
    optimizer.build(list(ranker.trainable_variables))
    with DeltaWriter(tmp_path, ranker, optimizer=optimizer, **BY_HAND):
        ids = tf.constant([1, 2])
        step = step_function(ranker, optimizer).get_concrete_function(ids)
        with ThreadPoolExecutor(4) as workers:
            list(workers.map(lambda _: step(ids), range(1000)))
    assert int(optimizer.iterations) == 1000


def variables_of(writer: DeltaWriter) -> dict[str, tf.Variable]:
    variables = writer._trainer.trackers.variables
    return {item.key: item.variable for item in variables.everything()}


@pytest.mark.parametrize(
    "make_optimizer", [lambda: hk.Adagrad(0.1), lambda: hk.Adam(0.1), lambda: keras.optimizers.Adam(0.1)]
)
def test_a_module_with_an_optimizer_is_exact_and_resumes(tmp_path: Path, make_optimizer: Any) -> None:
    def start(seed: int) -> tuple[Ranker, Any, DeltaWriter]:
        ranker, optimizer = Ranker(seed), make_optimizer()
        optimizer.build(ranker.trainable_variables)
        tables = [ranker.tables[0], "bias"]
        writer = DeltaWriter(tmp_path, ranker, tables=tables, optimizer=optimizer, **BY_HAND)
        return ranker, optimizer, writer

    ranker, optimizer, writer = start(seed=0)
    step = step_function(ranker, optimizer)
    saved: dict[Position | None, Values] = {}
    with writer:
        for number in range(6):
            step(tf.constant([number, 2 * number, 2 * number + 1]))
            writer.step()
            position = writer.save_full() if number == 3 else writer.save()
            saved[position] = values_of(variables_of(writer))
        assert {"tables/0", "bias", "scale"} < set(variables_of(writer))
    for position, values in saved.items():
        assert position is not None
        assert replay(tmp_path, position, values) == values
        assert replay(tmp_path, position, values, full=Position(1, 1)) == values
    with start(seed=1)[2] as again:
        assert values_of(variables_of(again)) == values


def test_rows_that_the_user_tells_are_saved_and_tables_that_he_does_not_are_compared(tmp_path: Path) -> None:
    told, compared = tf.Variable(tf.zeros((ROWS, 2))), tf.Variable(tf.zeros((ROWS, 2)))
    slot = tf.Variable(tf.zeros((ROWS, 2)))
    variables = {"told": told, "compared": compared}
    with DeltaWriter(
        tmp_path,
        variables,
        tables=list(variables),
        slots={"told": {"momentum": slot}},
        tracking={"told": "touched"},
        **BY_HAND,
    ) as writer:
        for number in range(4):
            for variable in (told, slot, compared):
                updates = tf.fill((1, 2), number + 1.0)
                tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=[number], updates=updates)
            writer.touch("told", [number])
            writer.step()
            position = writer.save()
            assert position is not None
            values = values_of(variables_of(writer))
            assert replay(tmp_path, position, values) == values
        with pytest.raises(ConfigurationError, match="'compared' is not tracked as touched"):
            writer.touch("compared", [1])


def test_what_cannot_work_is_refused_before_the_directory_is_touched(tmp_path: Path) -> None:
    weight = tf.Variable(tf.zeros((ROWS, 2)))
    stranger, unbuilt = hk.Adam(0.1), hk.Adam(0.1)
    stranger.build([tf.Variable(tf.zeros((ROWS, 2)))])
    for options, message in (
        ({"tables": ["nothing"]}, "'nothing' is not a variable"),
        ({"tracking": {"weight": "touched"}}, "'weight', which is no table"),
        ({"tables": ["weight"], "tracking": {"weight": "so"}}, "'so' is unknown"),
        ({"slots": {"nothing": {}}}, "slots are given for 'nothing'"),
        ({"tables": ["weight"], "slots": {"weight": {"m": tf.Variable([1.0])}}}, "has 1 row, its table"),
        ({"slots": {"weight": 3}}, "the slots of 'weight' are 3"),
        ({"slots": {"weight": {"m": 3}}}, "the slots of 'weight' are"),
        ({"slots": 3}, "slots is 3. give variables by table key"),
        ({"tables": 3}, "tables is 3. give a list"),
        ({"tracking": 3}, "tracking is 3. give"),
        ({"signatures": 3}, "signatures is 3. give tf.functions"),
        ({"state": 3}, "state is 3. give functions by name"),
        ({"job": "x"}, "job is 'x'. make it with"),
        ({"optimizer": "adam"}, "optimizer is 'adam'. give a Keras optimizer"),
        ({"optimizer": unbuilt}, "no variables yet"),
        ({"optimizer": stranger}, "make a new optimizer"),
        ({"optimizer": _built(keras.optimizers.SGD(0.1, momentum=0.9), weight), "tables": ["weight"],
          "tracking": {"weight": "touched"}}, "nothing records the rows"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=message):
            DeltaWriter(tmp_path / "run", {"weight": weight}, **options)
    assert not (tmp_path / "run").exists()


def _built(optimizer: Any, *variables: tf.Variable) -> Any:
    optimizer.build(list(variables))
    return optimizer


def test_sigterm_in_the_with_form_is_passed_on_after_the_step_is_saved(tmp_path: Path) -> None:
    ranker, passed_on = Ranker(), []
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: passed_on.append(len(committed(tmp_path))))
    try:
        with DeltaWriter(tmp_path, ranker, **BY_HAND) as writer:
            signal.raise_signal(signal.SIGTERM)
            assert passed_on == []
            ranker.scale.assign(7.0)
            writer.step()
            assert passed_on == [2]
            assert replay(tmp_path, committed(tmp_path)[-1], ["scale"]) == values_of({"scale": ranker.scale})
    finally:
        signal.signal(signal.SIGTERM, before)


def committed(run_dir: Path) -> list[Position]:
    return [manifest.position for manifest in Scanner(run_dir).scan().manifests]


def test_a_keras_model_is_sent_to_its_own_callback(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ConfigurationError, match=r"use hotdelta\.keras\.DeltaCheckpoint"):
        DeltaWriter(tmp_path, model)
    assert not list(tmp_path.iterdir())


def test_closed_writer_can_be_closed_again_and_says_that_it_is_closed(tmp_path: Path) -> None:
    table = tf.Variable(np.zeros((ROWS, 2), np.float32))
    with DeltaWriter(
        tmp_path, {"table": table}, tables=["table"], tracking={"table": "touched"}, **BY_HAND
    ) as writer:
        writer.close()
    writer.close()
    uses: list[Any] = [
        lambda: writer.touch("table", [1]),
        writer.step,
        lambda: writer.end_epoch(0),
        lambda: writer.register_state("place", int),
        lambda: writer.watermark(1.0),
        writer.save,
        writer.save_full,
        writer.__enter__,
    ]
    for use in uses:
        with pytest.raises(ConfigurationError, match=r"the writer is closed\. make a new DeltaWriter"):
            use()
    assert writer.position == Position(1, 1)


def test_rows_are_told_by_whole_numbers(tmp_path: Path) -> None:
    """A mask of the rows would pass for the rows 0 and 1, and all others would be lost."""
    table = tf.Variable(np.zeros((ROWS, 2), np.float32))
    with DeltaWriter(
        tmp_path, {"table": table}, tables="table", tracking={"table": "touched"}, **BY_HAND
    ) as writer:
        for ids in ([], 3, [1, 2], tf.constant([5], tf.int32), np.array([[7]], np.uint8)):
            writer.touch("table", ids)
        for ids in ([1.5], [False, True], tf.constant([1.0]), ["1"], None):
            with pytest.raises(ConfigurationError, match="rows of 'table' are told as"):
                writer.touch("table", ids)
        with pytest.raises(ConfigurationError, match="rows of 'table' are told as bool"):
            tf.function(lambda mask: writer.touch("table", mask), autograph=False)(tf.constant([True]))
        assert writer._trainer.trackers.touched_rows() == 5


def test_an_id_that_the_table_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    table = tf.Variable(np.zeros((ROWS, 2), np.float32))
    with DeltaWriter(
        tmp_path, {"table": table}, tables="table", tracking={"table": "touched"}, **BY_HAND
    ) as writer:
        problem = f"table, which has {ROWS} rows, is not one of them"
        for bad_id in (-1, ROWS, 2**63 - 1, np.uint64(2**64 - 1)):
            with pytest.raises(
                ConfigurationError, match=rf"{problem}: {bad_id}\. ids are from 0 to {ROWS - 1}"
            ):
                writer.touch("table", np.array([0, bad_id], type(bad_id)))
        touch = tf.function(lambda ids: writer.touch("table", ids), autograph=False)
        for dtype in (tf.int64, tf.int32, tf.uint8):
            touch(tf.constant([ROWS - 1], dtype))
        for bad_id in (-1, ROWS):
            with pytest.raises(tf.errors.InvalidArgumentError, match=problem):
                touch(tf.constant([0, bad_id], tf.int64))
        assert writer._trainer.trackers.touched_rows() == 1


def test_variables_that_no_checkpoint_holds_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'words' is of string, which no checkpoint holds"):
        DeltaWriter(tmp_path, {"words": tf.Variable(["a"])})
    with pytest.raises(ConfigurationError, match=r"'rows' has shape \(None,\)"):
        DeltaWriter(tmp_path, {"rows": tf.Variable([1.0], shape=[None])})


def test_an_optimizer_that_a_module_holds_and_nobody_gives_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = tf.Module()
    module.rows, module.given, module.others = tf.Variable(1.0), hk.Adagrad(0.1), [hk.Adagrad(0.1)]
    module.given.build([module.rows])
    DeltaWriter(tmp_path, module, optimizer=module.given).close()
    assert "attribute=given" not in caplog.text
    hio.save_persistables(module, tmp_path / "saved")
    assert caplog.text.count("an optimizer is not saved attribute=others/0") == 1


def test_the_end_of_a_loop_on_a_full_disk_raises_and_hides_no_other_error(tmp_path: Path) -> None:
    def train(raises: BaseException | None) -> None:
        with DeltaWriter(tmp_path, {"bias": bias}, **BY_HAND) as writer:
            for _ in range(3):
                bias.assign_add(1.0)
                writer.step()
            if raises is not None:
                raise raises

    bias = tf.Variable(0.0)
    with DeltaWriter(tmp_path, {"bias": bias}, **BY_HAND):
        pass
    for error in (None, SystemExit(0)):
        with small_files_only(), pytest.raises(UnsavedError, match=r"3 steps since position 1\.1"):
            train(error)
    with small_files_only(), pytest.raises(ValueError, match="bad data") as raised:
        train(ValueError("bad data"))
    assert "3 steps since position 1.1 would be lost" in raised.value.__notes__[0]
    assert Scanner(tmp_path).scan().manifests[-1].step == 0


def test_what_is_refused_at_the_end_is_saved_all_the_same(tmp_path: Path) -> None:
    """The first look at the training function is that of close(): it writes rows that no gradient names."""
    ranker, optimizer = Ranker(), hk.SGD(0.1, weight_decay=0.1)
    optimizer.build(list(ranker.trainable_variables))
    options: dict[str, Any] = {**BY_HAND, "tracking": {"tables/0": "touched"}}
    writer = DeltaWriter(tmp_path, ranker, tables=[ranker.tables[0]], optimizer=optimizer, **options)
    step_function(ranker, optimizer)(tf.constant([1, 2]))
    live = values_of(variables_of(writer))
    with pytest.raises(ConfigurationError, match="cannot be tracked as touched"):
        writer.close()
    assert replay(tmp_path, Position(1, 2), live) == live
