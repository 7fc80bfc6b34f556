"""An export in a TF1 Session, as a server loads it, with a way to read its variables chunk by chunk."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from exporter.graph.node_definitions import producer_of
from hotdelta import signatures as contract
from hotdelta.chain.format.schema import SignatureSpec
from hotdelta.errors import ApplyError
from hotdelta.signature_calls import PREDICT_POOL, Call, make_call, require_names

_KEY_OF_VARIABLE = re.compile(r"hotdelta_variables/(\d+)/\.ATTRIBUTES/VARIABLE_VALUE")

Array = npt.NDArray[Any]


class LoadedGraph:
    """A context manager around the Session."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._graph = tf.Graph()
        self._session = tf.compat.v1.Session(graph=self._graph)
        self._signatures: Any = None
        self._ids: Any = None
        self._bounds: Any = None
        self._rows: dict[int, tf.Tensor] = {}
        self._slices: dict[int, tf.Tensor] = {}
        self._whole: dict[int, tf.Tensor] = {}
        self._emptied: list[tf.Operation] = []

    def __enter__(self) -> Self:
        with self._graph.as_default():
            meta_graph = tf.compat.v1.saved_model.load(self._session, ["serve"], str(self._directory))
        self._signatures = meta_graph.signature_def
        self._add_reads()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._session.close()

    def prediction(self, signature: str, spec: SignatureSpec) -> Call:
        """As the loader calls it. Raises ApplyError when it could not."""
        if signature not in self._signatures:
            raise ApplyError(f"there is no signature {signature!r} in its graph", hint="export it again")
        definition = self._signatures[signature]
        require_names(signature, spec, definition)
        return make_call(self._session, definition, pool=PREDICT_POOL)

    def restore(self, signature: str, prefix: str) -> None:
        self.call(signature, {contract.PREFIX_INPUT: [prefix]})

    def call(self, signature: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        definition = self._signatures[signature]
        fetches = {name: tensor.name for name, tensor in definition.outputs.items()}
        feeds = {definition.inputs[name].name: value for name, value in inputs.items()}
        answer: Mapping[str, Any] = self._session.run(fetches, feeds)
        return answer

    def gather_rows(self, index: int, start: int, stop: int) -> Array:
        """A range of rows of the index-th variable of the schema. From then on reading it whole copies it."""
        return np.asarray(self._session.run(self._rows[index], {self._ids: np.arange(start, stop)}))

    def slice_rows(self, index: int, start: int, stop: int) -> Array:
        """The same without a copy, as long as no row of the variable was gathered or updated."""
        return np.asarray(self._session.run(self._slices[index], {self._bounds: [start, stop]}))

    def empty_variables(self) -> None:
        """Free the memory of all variables of the schema; they have no value then."""
        self._session.run(self._emptied)

    def read_whole(self, indices: Sequence[int]) -> list[Array]:
        """These variables of the schema. Each new choice of them costs the Session a look through the graph."""
        return [np.asarray(value) for value in self._session.run([self._whole[index] for index in indices])]

    def _add_reads(self) -> None:
        """All at once: each operation that is added later makes the Session look through the graph again."""
        with self._graph.as_default():
            self._ids = tf.compat.v1.placeholder(tf.int64, [None])
            self._bounds = tf.compat.v1.placeholder(tf.int64, [2])
            for index, handle in _variable_handles(self._graph).items():
                dtype = tf.as_dtype(handle.op.get_attr("dtype"))
                self._whole[index] = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
                self._emptied.append(tf.raw_ops.DestroyResourceOp(resource=handle))
                if len(handle.op.get_attr("shape").dim):
                    self._rows[index] = tf.raw_ops.ResourceGather(
                        resource=handle, indices=self._ids, dtype=dtype
                    )
                    self._slices[index] = self._whole[index][self._bounds[0] : self._bounds[1]]


def _variable_handles(graph: tf.Graph) -> dict[int, tf.Tensor]:
    """Which handle is the index-th variable: the SavedModel's own restore function says it by its checkpoint keys."""
    graph_def = graph.as_graph_def()
    functions = {function.signature.name: function for function in graph_def.library.function}
    found: dict[int, tf.Tensor] = {}
    for node in graph_def.node:
        function = functions.get(node.attr["f"].func.name) if "f" in node.attr else None
        for index, argument in _restored_arguments(function) if function is not None else ():
            found[index] = graph.get_operation_by_name(node.name).inputs[argument]
    return found


def _restored_arguments(function: Any) -> Iterator[tuple[int, int]]:
    """(index of a variable, number of the argument that is its handle) for each variable that a function restores."""
    nodes = {node.name: node for node in function.node_def}
    arguments = {argument.name: number for number, argument in enumerate(function.signature.input_arg)}
    for node in nodes.values():
        if node.op != "AssignVariableOp":
            continue
        source = node.input[1]
        while nodes[producer_of(source)].op == "Identity":
            source = nodes[producer_of(source)].input[0]
        restore = nodes[producer_of(source)]
        match = _KEY_OF_VARIABLE.fullmatch(_restored_key(restore, source, nodes))
        if match:
            yield int(match[1]), arguments[node.input[0]]


def _restored_key(restore: Any, source: str, nodes: Mapping[str, Any]) -> str:
    """The checkpoint key of an output like `RestoreV2:tensors:3`; empty when it does not come from a restore."""
    if restore.op != "RestoreV2":
        return ""
    keys = tf.make_ndarray(nodes[producer_of(restore.input[1])].attr["value"].tensor)
    return str(keys[int(source.rpartition(":")[2])].decode())
