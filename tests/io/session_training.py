"""A program in graph mode: TF1 graphs with their Session, saved and loaded. Fails by assertion."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
import hotdelta.io as hio
from hotdelta.errors import ConfigurationError, ModelMismatchError
from hotdelta.io.model_state import state_of
from tests.io.odd_sessions import check_odd_sessions


class Training:
    """A table, perhaps in parts, a weight, Adagrad slots, a step and a metric; the graph is finalized."""

    def __init__(self, *, parts: int | None = None, is_resource: bool = True, seed: int = 0) -> None:
        partitioner = tf.fixed_size_partitioner(parts) if parts else None
        graph = tf.Graph()
        with graph.as_default():
            tf.set_random_seed(seed)
            with tf.variable_scope("model", use_resource=is_resource, partitioner=partitioner):
                table = tf.get_variable("table", [10, 2])
            weight = tf.get_variable("weight", [2, 1], use_resource=is_resource)
            self.ids = tf.placeholder(tf.int64, [None], name="ids")
            self.score = tf.matmul(tf.nn.embedding_lookup(table, self.ids), weight, name="score")
            other = tf.get_variable("other", [6, 2], use_resource=is_resource)
            self.others = tf.placeholder(tf.int64, [None], name="others")
            rows = tf.nn.embedding_lookup(other, self.others)
            self.both = tf.add(tf.reduce_sum(self.score), tf.reduce_sum(rows), name="both")
            loss = tf.square(self.both - 1.0)
            step = tf.train.get_or_create_global_step()
            self._train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
            tf.metrics.mean(loss)
            initializers = [tf.global_variables_initializer(), tf.local_variables_initializer()]
        graph.finalize()
        self.table = table
        self.session = tf.Session(graph=graph)
        self.session.run(initializers)

    def train(self, *ids: int) -> None:
        self.session.run(self._train, {self.ids: ids, self.others: [1, 2]})

    def scores(self) -> Any:
        return self.session.run(self.score, {self.ids: np.arange(10)})

    def bits(self) -> dict[str, bytes]:
        return {
            held.key: held.read().tobytes()
            for held in state_of(self.session).variables
            if held.info.is_persistable
        }


def goes_on_as_if_it_had_never_stopped(directory: Path | str, **options: Any) -> None:
    first, second = Training(**options), Training(seed=1, **options)
    first.train(1, 2, 3)
    hio.save_persistables(first.session, directory)

    report = hio.load_persistables(second.session, directory)

    assert report.step == 1
    for training in (first, second):
        training.train(3, 4, 4)
    assert first.bits() == second.bits()


def a_session_without_values_is_loaded_into_and_not_saved(directory: Path) -> None:
    training, other = Training(), Training(seed=1)
    training.train(1, 2)
    hio.save_persistables(training.session, directory / "saved")
    other.session = tf.Session(graph=other.session.graph)
    with pytest.raises(ConfigurationError, match="no value for every variable yet"):
        hio.save_persistables(other.session, directory / "not saved")
    assert not (directory / "not saved").exists()
    hio.load_persistables(other.session, directory / "saved")
    assert other.bits() == training.bits()


def a_partitioned_variable_is_given_as_it_is_or_by_its_parts(directory: Path) -> None:
    training, other = Training(parts=3), Training(parts=3, seed=1)
    for name, given in (("whole", [training.table]), ("parts", list(training.table))):
        hio.save_vars(training.session, directory / name, given)
        loaded = hio.load_vars(other.session, directory / name, [other.table])
        assert loaded.loaded == ("model/table",)
        assert other.bits()["model/table"] == training.bits()["model/table"]


def classes_follow_the_collections() -> None:
    classes = {info.key: str(info.variable_class) for info in hio.describe(Training().session)}
    assert classes["model/table"] == classes["weight"] == "parameter"
    assert classes["model/table/Adagrad"] == classes["global_step"] == "persistable"
    assert classes["mean/total"] == "temporary"


def rows_of_other_parts_are_refused(directory: Path) -> None:
    hio.save_params(Training(parts=3).session, directory)
    other = Training(parts=2)
    before = other.bits()
    message = "mod in parts of 5, 5 rows in the model, mod in parts of 4, 3, 3 rows in the checkpoint"
    with pytest.raises(ModelMismatchError, match=message):
        hio.load_params(other.session, directory)
    assert other.bits() == before


def an_inference_model_predicts_as_the_graph(directory: Path | str) -> None:
    training = Training()
    training.train(1, 2)
    hio.save_inference_model(directory, ["ids"], [training.score], training.session, save_incr_model=True)
    program, feed_names, fetch_names = hio.load_inference_model(directory)
    assert (feed_names, fetch_names) == (("ids",), ("score",))
    np.testing.assert_allclose(program(ids=np.arange(10))["score"], training.scores(), rtol=1e-6)


def exported_keys(version: Path | str) -> set[str]:
    document = json.loads((Path(version) / "assets.extra/hotdelta.json").read_text())
    return {variable["key"] for variable in document["schema"]["variables"]}


def an_inference_model_has_only_the_variables_that_its_outputs_need(directory: Path, **options: Any) -> None:
    training = Training(**options)
    training.train(1, 2)
    version = hio.save_inference_model(directory, ["ids"], "score", training.session)
    assert exported_keys(version) == {"model/table", "weight"}
    program, _, _ = hio.load_inference_model(directory)
    np.testing.assert_allclose(program(ids=np.arange(10))["score"], training.scores(), rtol=1e-6)
    version = hio.save_inference_model(directory, ["ids", "others"], "both", training.session)
    assert exported_keys(version) == {"model/table", "weight", "other"}


def an_input_that_is_needed_must_be_named(directory: Path) -> None:
    training = Training()
    with pytest.raises(ConfigurationError, match="name more inputs: others"):
        hio.save_inference_model(directory, ["ids"], [training.both], training.session)
    for feeds, targets in ((["nope"], [training.score]), (["ids"], ["nope"])):
        with pytest.raises(ConfigurationError, match="has no tensor 'nope'"):
            hio.save_inference_model(directory, feeds, targets, training.session)
    assert not directory.exists()


def main(directory: Path) -> None:
    for name, options in (
        ("resource", {}),
        ("reference", {"is_resource": False}),
        ("parts", {"parts": 3}),
        ("reference parts", {"parts": 3, "is_resource": False}),
    ):
        goes_on_as_if_it_had_never_stopped(directory / name, **options)
    a_session_without_values_is_loaded_into_and_not_saved(directory / "without values")
    a_partitioned_variable_is_given_as_it_is_or_by_its_parts(directory / "given parts")
    classes_follow_the_collections()
    rows_of_other_parts_are_refused(directory / "other parts")
    an_inference_model_predicts_as_the_graph(directory / "inference")
    an_inference_model_has_only_the_variables_that_its_outputs_need(directory / "cut")
    an_inference_model_has_only_the_variables_that_its_outputs_need(directory / "cut parts", parts=3)
    an_input_that_is_needed_must_be_named(directory / "input")
    goes_on_as_if_it_had_never_stopped("memory://session")
    an_inference_model_predicts_as_the_graph("memory://export")
    check_odd_sessions(directory / "odd")
    print("all is well")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
