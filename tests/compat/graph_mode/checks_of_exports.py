"""Exports of graphs: one table per partitioned variable, ids as in training, updated by deltas as any other model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from exporter.cli import main
from exporter.export import ExportOptions
from exporter.loaded_graph import LoadedGraph
from hotdelta.chain.format.manifest import Kind
from hotdelta.compat.v1.serving.graph_export import (
    GraphSignature,
    _layout,
    _prepare,
    eager_mode,
    export_chain,
)
from hotdelta.errors import ConfigurationError, ModelMismatchError
from tests.compat.chain_states import manifests
from tests.compat.graph_mode.small_graphs import (
    COLUMNS,
    ROWS,
    Build,
    Model,
    build_model,
    monitored,
    new_graph,
    train,
)

pytestmark = pytest.mark.I1

BATCHES = ([1, 5, 5], [2], [29, 0, 13], [5, 7], [8, 9])
ODD_NAME = "User ids/ä"
EVERY_ID = np.arange(ROWS)
INCREMENTAL = ExportOptions(save_incr_model=True)


def rows_of(model: Model, build: Build) -> Any:
    return tf.nn.embedding_lookup(model.table, model.ids, partition_strategy=build.strategy)


def export(build: Build, run_dir: Path, export_dir: Path, options: ExportOptions = INCREMENTAL) -> Path:
    """From a graph of its own, as an inference job does."""
    with new_graph():
        model = build_model(build)
        signature = GraphSignature({"ids": model.ids}, {"rows": rows_of(model, build), "loss": model.loss})
        return export_chain({"serving_default": signature}, run_dir, export_dir, options)


def predictions(session: Any, model: Model, rows: Any) -> list[bytes]:
    answers = session.run([rows, model.loss], {model.ids: EVERY_ID})
    return [np.asarray(answer).tobytes() for answer in answers]


def served(graph: LoadedGraph, ids: str = "ids") -> list[bytes]:
    answer = graph.call("serving_default", {ids: EVERY_ID})
    return [answer["rows"].tobytes(), answer["loss"].tobytes()]


@pytest.mark.parametrize(
    "build",
    [
        Build(use_resource=True, ids_dtype=tf.int32),
        Build(parts=4),
        Build(parts=4, use_resource=True, strategy="div"),
        Build(parts=4, dtype=tf.float16),
    ],
    ids=str,
)
def test_an_export_follows_the_chain_with_the_ids_of_training(tmp_path: Path, build: Build) -> None:
    run_dir = tmp_path / "run"
    with new_graph():
        model = build_model(build, tf.train.AdagradOptimizer(0.1))
        rows = rows_of(model, build)
        with monitored(run_dir) as session:
            train(session, model, BATCHES[:2])
            first = export(build, run_dir, tmp_path / "export")
            with LoadedGraph(first) as graph:
                assert served(graph) == predictions(session._tf_sess(), model, rows)
                train(session, model, BATCHES[2:4])
                delta = manifests(run_dir, Kind.DELTA)[-1]
                graph.restore("restore_incremental", str(run_dir / ".incremental_checkpoint" / delta.prefix))
                updated = served(graph)
                assert updated == predictions(session._tf_sess(), model, rows)
        last = manifests(run_dir, Kind.FULL)[-1]
        assert last.step == 4
    with LoadedGraph(first) as graph:
        assert served(graph) != updated
        graph.restore("restore_full", str(run_dir / last.prefix))
        assert served(graph) == updated
        # Not a row of the next part.
        for bad_id in (ROWS, -1):
            with pytest.raises(tf.errors.InvalidArgumentError):
                graph.call("serving_default", {"ids": [bad_id]})


def test_a_later_export_of_a_chain_is_what_the_first_has_become(tmp_path: Path) -> None:
    build, run_dir = Build(parts=4), tmp_path / "run"
    with new_graph():
        model = build_model(build, tf.train.AdagradOptimizer(0.1))
        rows = rows_of(model, build)
        with monitored(run_dir) as session:
            train(session, model, BATCHES[:4])
            expected = predictions(session._tf_sess(), model, rows)
    with LoadedGraph(export(build, run_dir, tmp_path / "export")) as graph:
        assert served(graph) == expected


def test_without_save_incr_model_only_fulls_can_be_loaded(tmp_path: Path) -> None:
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path / "run"):
            pass
    with LoadedGraph(export(Build(), tmp_path / "run", tmp_path / "export", ExportOptions())) as graph:
        assert "restore_full" in graph._signatures
        assert "restore_incremental" not in graph._signatures


def test_a_graph_with_nothing_incremental_is_refused_at_export_time(tmp_path: Path) -> None:
    with new_graph():
        inputs = tf.placeholder(tf.float32, [None, 4])
        kernel = tf.get_variable("kernel", [4, 2], use_resource=True)
        outputs = {"y": tf.matmul(inputs, kernel), "variable": kernel}
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            tf.saved_model.simple_save(session, str(tmp_path / "full"), {"x": inputs}, outputs)
            with pytest.raises(ConfigurationError, match="nothing to update row by row"):
                tf.saved_model.simple_save(
                    session, str(tmp_path / "incremental"), {"x": inputs}, outputs, save_incr_model=True
                )
            expected = session.run(kernel)
    assert not (tmp_path / "incremental").exists()
    with LoadedGraph(tmp_path / "full") as graph:
        answer = graph.call("serving_default", {"x": [[1, 0, 0, 0]]})
    np.testing.assert_array_equal(answer["variable"], expected)
    np.testing.assert_array_equal(answer["y"], expected[:1])


def test_another_layout_is_not_exported_from_the_chain(tmp_path: Path) -> None:
    with new_graph():
        build_model(Build(parts=4), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path / "run"):
            pass
    with pytest.raises(
        ModelMismatchError, match="table: in parts mod 15 15 in the graph, mod 8 8 7 7 trained"
    ):
        export(Build(parts=2), tmp_path / "run", tmp_path / "export")


def test_the_command_exporter_says_how_a_run_of_tensorflow_1_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with new_graph():
        build_model(Build(), tf.train.AdagradOptimizer(0.1))
        with monitored(tmp_path / "run"):
            pass
    flags = ["--checkpoint-dir", str(tmp_path / "run"), "--export-dir", str(tmp_path / "export")]
    assert main([*flags, "--save-incr-model"]) != 0
    said = capsys.readouterr().err
    assert "estimator.export_saved_model(..., save_incr_model=True) or tf.saved_model.simple_save" in said
    assert not (tmp_path / "export").exists()


def test_builder_and_simple_save_export_what_the_session_holds_and_it_follows_the_chain(
    tmp_path: Path,
) -> None:
    build = Build(parts=4)
    with new_graph():
        model = build_model(build, tf.train.AdagradOptimizer(0.1))
        rows = rows_of(model, build)
        with monitored(tmp_path / "run") as session:
            raw = session._tf_sess()
            train(session, model, BATCHES[:2])
            tf.saved_model.simple_save(
                raw,
                str(tmp_path / "simple"),
                {ODD_NAME: model.ids},
                {"rows": rows, "loss": model.loss},
                save_incr_model=True,
            )
            builder = tf.saved_model.Builder(str(tmp_path / "export" / "7"), save_incr_model=True)
            definition = tf.saved_model.predict_signature_def(
                {"ids": model.ids}, {"rows": rows, "loss": model.loss}
            )
            builder.add_meta_graph_and_variables(
                raw, [tf.saved_model.tag_constants.SERVING], {"serving_default": definition}
            )
            builder.save()
            expected = predictions(raw, model, rows)
            train(session, model, BATCHES[2:])
        last = manifests(tmp_path / "run", Kind.FULL)[-1]
    for path, ids in ((tmp_path / "simple", ODD_NAME), (tmp_path / "export" / "7", "ids")):
        with LoadedGraph(path) as graph:
            assert served(graph, ids) == expected
            graph.restore("restore_full", str(tmp_path / "run" / last.prefix))
            assert served(graph, ids) != expected


def test_the_older_name_of_builder_is_that_of_tensorflow_unless_it_is_given_our_options(
    tmp_path: Path,
) -> None:
    make_builder = tf.saved_model.builder.SavedModelBuilder
    with new_graph():
        model = build_model(Build())
        total = tf.reduce_sum(model.table, name="total")
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            stock = make_builder(str(tmp_path / "stock"))
            stock.add_meta_graph_and_variables(session, ["serve", "gpu"], None, None)
            stock.add_meta_graph(["train"])
            stock.save(as_text=True)
            expected = session.run(total)
            for name, options in (
                ("deltas", {"save_incr_model": True}),
                ("fulls", {"allow_whole_table_reads": ["table"]}),
            ):
                ours = make_builder(str(tmp_path / name), **options)
                assert isinstance(ours, tf.saved_model.Builder)
    for tags in (["serve", "gpu"], ["train"]):
        with new_graph(), tf.Session() as session:
            tf.saved_model.loader.load(session, tags, str(tmp_path / "stock"))
            assert session.run("total:0") == expected


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_feature_columns_and_vocabularies_are_exported(tmp_path: Path, use_resource: bool) -> None:
    def build() -> tuple[Any, Any]:
        tf.get_variable_scope().set_use_resource(use_resource)
        words = tf.placeholder(tf.string, [None, 1], name="words")
        column = tf.feature_column.categorical_column_with_vocabulary_list("words", ["a", "b", "c"])
        embedding = tf.feature_column.embedding_column(column, 4)
        return words, tf.feature_column.input_layer({"words": words}, [embedding])

    with new_graph():
        words, outputs = build()
        step = tf.train.get_or_create_global_step()
        train_op = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(outputs), global_step=step)
        with monitored(tmp_path / "run") as session:
            session.run(train_op, {words: [["b"], ["a"]]})
            expected = session.run(outputs, {words: [["a"], ["c"], ["?"]]})
    with new_graph():
        words, outputs = build()
        signature = GraphSignature({"words": words}, {"rows": outputs})
        path = export_chain(
            {"serving_default": signature}, tmp_path / "run", tmp_path / "export", INCREMENTAL
        )
    with LoadedGraph(path) as graph:
        answer = graph.call("serving_default", {"words": [["a"], ["c"], ["?"]]})
    assert answer["rows"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_an_output_that_waits_for_an_update_is_refused_with_the_update_and_its_variable(
    tmp_path: Path, use_resource: bool
) -> None:
    with new_graph():
        model = build_model(Build(use_resource=use_resource), tf.train.AdagradOptimizer(0.1))
        with tf.control_dependencies([model.train]):
            after_training = tf.identity(model.loss, name="after_training")
        _, update = tf.metrics.mean(model.loss, name="metric")
        written = tf.scatter_update(model.table, [1], tf.zeros([1, COLUMNS]))
        with tf.control_dependencies([tf.train.GradientDescentOptimizer(0.1).minimize(model.loss)]):
            after_descent = tf.identity(model.loss, name="after_descent")
        cases = [
            (after_training, r"after_training:0' waits for .*Adagrad.*writes to variable"),
            (after_descent, r"after_descent:0' waits for .*GradientDescent/update_\w+/.*writes to variable"),
            (update, "metric/update_op:0' waits for .*AssignAdd.*writes to variable 'metric/"),
            (written, "waits for .*ScatterUpdate.*writes to variable 'table'"),
            (model.train, "'answer' is the operation 'Adagrad'"),
        ]
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            for output, problem in cases:
                outputs = {"plain": model.loss, "answer": output}
                with pytest.raises(ConfigurationError, match=problem):
                    tf.saved_model.simple_save(
                        session, str(tmp_path / "1"), {"ids": model.ids}, outputs, save_incr_model=True
                    )


def test_tables_are_not_filled_before_their_values_come() -> None:
    with new_graph():
        model = build_model(Build(use_resource=True))
        signatures = {"serving_default": GraphSignature({"ids": model.ids}, {"loss": model.loss})}
        layout = _layout()
        schema = layout.variables.schema
        prepared = _prepare(tf.get_default_graph(), layout, signatures, schema)
    with eager_mode():
        variables = prepared().variables
        has_value = [bool(tf.raw_ops.VarIsInitializedOp(resource=each.handle)) for each in variables]
    assert has_value == [False] * len(schema.variables)
