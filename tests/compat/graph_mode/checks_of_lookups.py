"""Look-ups in branches and loops of TensorFlow 1 are exported as gathers of rows of one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from exporter.export import ExportOptions
from exporter.loaded_graph import LoadedGraph
from hotdelta.compat.v1.serving.graph_export import GraphSignature, export_session
from hotdelta.errors import ConfigurationError
from tests.compat.graph_mode.small_graphs import new_graph
from tests.exporter.largest_tensors import largest_tensor_bytes

pytestmark = [pytest.mark.I5, pytest.mark.optimized]

ROWS, WIDTH = 3000, 4
TABLE_BYTES = ROWS * WIDTH * 4
IDS = np.array([1, 5, ROWS - 1], np.int64)
INCREMENTAL = ExportOptions(save_incr_model=True)

Case = Callable[[Any, Any], Any]
look_up = tf.nn.embedding_lookup


def sparse(ids: Any) -> Any:
    return tf.SparseTensor(tf.where(ids[:, tf.newaxis] >= 0), ids, [3, 1])


def in_cond(case: Case) -> Case:
    def chosen(table: Any, ids: Any) -> Any:
        return tf.cond(tf.size(ids) > 1, lambda: case(table, ids), lambda: 2.0 * case(table, ids))

    return chosen


def in_loop(case: Case) -> Case:
    def looped(table: Any, ids: Any) -> Any:
        def body(count: Any, total: Any) -> Any:
            return count + 1, total + case(table, ids)

        return tf.while_loop(lambda count, _: count < 3, body, [0, tf.zeros([3, WIDTH])])[1]

    return looped


LOOKUPS: dict[str, Case] = {
    "cond": in_cond(look_up),
    "constant": in_cond(lambda table, _: look_up(table, tf.constant(IDS))),
    "loop": in_loop(look_up),
    "cond_in_loop": in_loop(in_cond(look_up)),
    "loop_in_cond": in_cond(in_loop(look_up)),
    "map_fn": lambda table, ids: tf.map_fn(lambda each: look_up(table, each), ids, dtype=tf.float32),
    "sparse": lambda table, ids: tf.nn.embedding_lookup_sparse(table, sparse(ids), None, combiner="sum"),
    "safe_sparse": lambda table, ids: tf.nn.safe_embedding_lookup_sparse(table, sparse(ids)),
    "sparse_in_cond": in_cond(
        lambda table, ids: tf.nn.embedding_lookup_sparse(table, sparse(ids), None, combiner="sum")
    ),
}


def build(use_resource: bool, parts: int) -> tuple[Any, Any]:
    partitioner = tf.fixed_size_partitioner(parts) if parts > 1 else None
    with tf.variable_scope("", use_resource=use_resource, partitioner=partitioner):
        table = tf.get_variable("table", [ROWS, WIDTH], initializer=tf.random_uniform_initializer(seed=1))
    return table, tf.placeholder(tf.int64, [3], name="ids")


@pytest.mark.parametrize("use_resource, parts", [(False, 3), (True, 1)], ids=["ref in parts", "resource"])
def test_look_ups_in_branches_and_loops_are_row_gathers(
    tmp_path: Path, use_resource: bool, parts: int
) -> None:
    with new_graph():
        table, ids = build(use_resource, parts)
        answers = {name: case(table, ids) for name, case in LOOKUPS.items()}
        signatures = {
            name: GraphSignature({"ids": ids}, {"answer": answer}) for name, answer in answers.items()
        }
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            expected = session.run(answers, {ids: IDS})
            path = export_session(session, signatures, tmp_path / "export", INCREMENTAL)
    with LoadedGraph(path) as graph:
        for name in LOOKUPS:
            answer = graph.call(name, {"ids": IDS})["answer"]
            assert answer.tobytes() == expected[name].tobytes(), name
            assert largest_tensor_bytes(graph, name, {"ids": IDS}) < TABLE_BYTES / 10, name


def test_an_id_that_a_part_does_not_have_is_an_error_in_a_branch_too(tmp_path: Path) -> None:
    with new_graph():
        table, ids = build(use_resource=True, parts=3)
        signature = GraphSignature({"ids": ids}, {"answer": LOOKUPS["cond_in_loop"](table, ids)})
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            path = export_session(session, {"serving_default": signature}, tmp_path / "export", INCREMENTAL)
    with LoadedGraph(path) as graph, pytest.raises(tf.errors.InvalidArgumentError):
        graph.call("serving_default", {"ids": [0, 1, ROWS]})


def waiting_lookup(table: Any, ids: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_less(ids[0], tf.constant(10, tf.int64))]):
        return look_up(table, ids)


def lookup_in_what_waits(table: Any, ids: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_less(ids[1], tf.constant(10, tf.int64))]):
        value = tf.identity(table)
    return tf.gather(value, ids)


def segments_of_waiting_cast(table: Any, ids: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_less(ids[2], tf.constant(10, tf.int64))]):
        value = tf.cast(tf.convert_to_tensor(table), tf.float64)
    return tf.cast(tf.sparse.segment_sum(value, ids, [0, 1, 2]), tf.float32)


def waiting_gather_in_cast(table: Any, ids: Any) -> Any:
    value = tf.cast(tf.convert_to_tensor(table), tf.float64)
    with tf.control_dependencies([tf.debugging.assert_less(ids[2], tf.constant(10, tf.int64))]):
        return tf.gather(value, ids)


WAITING: dict[str, Case] = {
    "of look-up": waiting_lookup,
    "of value": lookup_in_what_waits,
    "in loop": in_loop(in_cond(lookup_in_what_waits)),
    "of cast": segments_of_waiting_cast,
    "of gather in cast": waiting_gather_in_cast,
}
# The value of a reference would be read outside of the loop.
WAITING_OF_RESOURCES = WAITING | {"of cast in loop": in_loop(segments_of_waiting_cast)}


@pytest.mark.parametrize("use_resource, cases", [(True, WAITING_OF_RESOURCES), (False, WAITING)])
def test_what_a_look_up_waits_for_still_refuses_requests(
    tmp_path: Path, use_resource: bool, cases: dict[str, Case]
) -> None:
    with new_graph():
        table, ids = build(use_resource, parts=1)
        answers = {name: case(table, ids) for name, case in cases.items()}
        signatures = {
            name: GraphSignature({"ids": ids}, {"answer": answer}) for name, answer in answers.items()
        }
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            expected = session.run(answers, {ids: [1, 2, 3]})
            path = export_session(session, signatures, tmp_path / "export", INCREMENTAL)
    with LoadedGraph(path) as graph:
        for name in cases:
            answer = graph.call(name, {"ids": [1, 2, 3]})["answer"]
            assert answer.tobytes() == expected[name].tobytes(), name
            with pytest.raises(tf.errors.InvalidArgumentError, match="assert"):
                graph.call(name, {"ids": [20, 20, 20]})


def test_what_reads_of_parts_wait_for_still_refuses_requests(tmp_path: Path) -> None:
    with new_graph():
        table, ids = build(use_resource=True, parts=3)
        with tf.control_dependencies([tf.debugging.assert_less(ids[0], tf.constant(10, tf.int64))]):
            values = [tf.identity(part) for part in table]
        answer = look_up(table, ids) + tf.add_n([tf.reduce_sum(value) for value in values])
        signature = GraphSignature({"ids": ids}, {"answer": answer})
        options = ExportOptions(save_incr_model=True, allow_whole_table_reads=("table",))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            path = export_session(session, {"serving_default": signature}, tmp_path / "export", options)
    with LoadedGraph(path) as graph:
        graph.call("serving_default", {"ids": [1, 2, 3]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="assert"):
            graph.call("serving_default", {"ids": [20, 2, 3]})


def test_ids_that_variables_are_not_gathered_by_are_refused_by_the_name_of_the_table(tmp_path: Path) -> None:
    with new_graph():
        table, ids = build(use_resource=True, parts=1)
        answer = tf.gather(tf.convert_to_tensor(table), tf.cast(ids, tf.int16))
        signatures = {"serving_default": GraphSignature({"ids": ids}, {"answer": answer})}
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            with pytest.raises(ConfigurationError, match="reads all of table 'table'"):
                export_session(session, signatures, tmp_path / "export", INCREMENTAL)


@pytest.mark.parametrize("wrap", [lambda case: case, in_cond], ids=["plain", "cond"])
@pytest.mark.parametrize("parts", [1, 3])
def test_reading_a_whole_table_is_refused_by_its_name(
    tmp_path: Path, parts: int, wrap: Callable[[Case], Case]
) -> None:
    def multiply(table: Any, ids: Any) -> Any:
        return tf.matmul(look_up(table, ids), tf.convert_to_tensor(table), transpose_b=True)

    with new_graph():
        table, ids = build(use_resource=True, parts=parts)
        signature = GraphSignature({"ids": ids}, {"answer": wrap(multiply)(table, ids)})
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            with pytest.raises(ConfigurationError, match="reads all of table 'table'"):
                export_session(session, {"serving_default": signature}, tmp_path / "export", INCREMENTAL)
            tf.saved_model.simple_save(
                session,
                str(tmp_path / "allowed"),
                signature.inputs,
                signature.outputs,
                allow_whole_table_reads=["table"],
            )
