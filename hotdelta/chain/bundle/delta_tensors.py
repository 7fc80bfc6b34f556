"""The tensors of a bundle: which are those of a variable, what each says of itself, and in which data file they lie."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hotdelta.chain.format import names
from hotdelta.chain.format.position import Node, encode_identity

SHARD_ROLES = (names.ROLE_SERVING, names.ROLE_TRAINING)

# What comes before the key of the table in that of a slot: Keras's optimizers may be wrapped, DeltaWriter has `slots`.
_BEFORE_TABLE = re.compile(r"(?:optimizer(?:/inner|/optimizers/\d+)*|slots)/[^/]+/|[^/]*/")


def shard_of(role: str) -> int:
    return SHARD_ROLES.index(role)


def state_tensors(node: Node, parent: Node | None, step: int) -> Mapping[str, npt.NDArray[Any]]:
    """What every bundle says about itself, for a graph to read."""
    return {
        names.IDENTITY_TENSOR: np.array(encode_identity(node, parent), np.int64),
        names.STEP_TENSOR: np.array(step, np.int64),
    }


def ids_tensor(tensors: Container[str], key: str, *, owner: str = "") -> str:
    """The name of the tensor with the ids of a variable's rows. A slot may share that of its table.

    `owner`: the key of that table; empty when only the name of the slot tells it.
    """
    found = possible_ids(key, owner=owner)
    return next((name for name in found if name in tensors), key + names.IDS_SUFFIX)


def possible_ids(key: str, *, owner: str = "") -> Iterator[str]:
    """The names that the tensor with its ids may have. The first that exists is the right one."""
    return (possible + names.IDS_SUFFIX for possible in possible_tables(key, owner=owner))


def possible_tables(key: str, *, owner: str = "") -> Iterator[str]:
    """The keys of the tables whose ids may be those of a variable: it is one itself, or a slot of one."""
    yield key
    yield owner
    yield from _possible_owners(key)


def _possible_owners(key: str) -> Iterator[str]:
    """The likeliest first. TensorFlow 1 names a slot `<table>/<slot>`, Keras `optimizer/<slot>/<table>`.

    A table may be named like a slot: that of `optimizer/momentums/items` is `items`, and not `momentums/items`.
    """
    above = key
    while "/" in above:
        above = above.rpartition("/")[0]
        yield above
    before = _BEFORE_TABLE.match(key)
    below = key[before.end() :] if before else ""
    while below:
        yield below
        below = below.partition("/")[2]
