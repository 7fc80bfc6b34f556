"""Who writes to a table in a traced training function: the proof that recording sees every write, or that it does not.

A table may be *touched* only if, in every trace, each operation that can write to it or to its slots is a row-wise one
that names its rows, and the recorder stands in the same trace. Anything that is not known here counts as a writer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hotdelta.train.tables.graph_walk import Body, bodies_of, handle_uses

READERS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
)
ROW_WRITERS = frozenset(
    {
        *(f"ResourceScatter{kind}" for kind in ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max")),
        *(f"ResourceScatterNd{kind}" for kind in ("Update", "Add", "Sub", "Min", "Max")),
        *(
            f"ResourceSparseApply{kind}"
            for kind in (
                "Adadelta",
                "Adagrad",
                "AdagradDA",
                "AdagradV2",
                "CenteredRMSProp",
                "Ftrl",
                "FtrlV2",
                "KerasMomentum",
                "Momentum",
                "ProximalAdagrad",
                "ProximalGradientDescent",
                "RMSProp",
            )
        ),
    }
)


@dataclass(frozen=True, slots=True)
class TraceUse:
    """What one trace does to each watched variable: the names of the operations that use it."""

    readers: Mapping[str, frozenset[str]]
    row_writers: Mapping[str, frozenset[str]]
    other_writers: Mapping[str, frozenset[str]]


def inspect_trace(graph: Any, watched: Mapping[str, tf.Variable]) -> TraceUse:
    """How the traced function `graph` (a FuncGraph), with all that it calls, uses the watched variables."""
    keys = list(watched)
    readers, row_writers, other_writers = (defaultdict[str, set[str]](set) for _ in range(3))
    bodies = bodies_of(graph, graph.as_graph_def(), Body)
    for use in handle_uses(graph, bodies, watched.values()):
        is_reader, is_row_writer = use.operation in READERS, use.operation in ROW_WRITERS
        found = readers if is_reader else row_writers if is_row_writer else other_writers
        found[keys[use.index]].add(use.operation)
    return TraceUse(*(_freeze(found) for found in (readers, row_writers, other_writers)))


def _freeze(found: Mapping[str, set[str]]) -> Mapping[str, frozenset[str]]:
    return {key: frozenset(operations) for key, operations in found.items()}
