"""An update as arrays, in the shape in which the signature stage_rows takes it and staged_preimage gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hotdelta import signatures as contract
from hotdelta.chain import Node, Schema, encode_identity
from hotdelta.chain.format import names
from hotdelta.signature_calls import array_dtype

Array = npt.NDArray[Any]
FedUpdate = Mapping[str, Array]


def empty_update(schema: Schema, *, node: Node, parent: Node | None, step: int) -> dict[str, Array]:
    """An update that changes nothing but the state that the model says it holds."""
    update: dict[str, Array] = {
        contract.IDENTITY_VALUE: np.array(encode_identity(node, parent), np.int64),
        contract.STEP_VALUE: np.array(step, np.int64),
    }
    for table in schema.tables:
        update[table.key + names.IDS_SUFFIX] = np.empty(0, np.int64)
        update[table.key + names.ROWS_SUFFIX] = np.empty((0, *table.shape[1:]), array_dtype(table.dtype))
    for other in schema.others:
        update[other.key + names.VALUE_SUFFIX] = np.empty((0, *other.shape), array_dtype(other.dtype))
    return update


def count_bytes(update: FedUpdate) -> int:
    return sum(array.nbytes for array in update.values())
