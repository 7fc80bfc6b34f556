"""Which tensors of a delta are those of a variable."""

from __future__ import annotations

from collections.abc import Container, Mapping

from hotdelta.chain import names
from hotdelta.chain.bundle_index import BundleEntry


def has_value(tensors: Mapping[str, BundleEntry], key: str) -> bool:
    """Whether the delta has the whole value of a variable: one that is no table, and changed."""
    entry = tensors.get(key + names.VALUE_SUFFIX)
    return entry is not None and entry.shape[0] == 1


def ids_tensor(tensors: Container[str], key: str) -> str:
    """The name of the ids of its rows: its own; of a slot that shares those of its table, the table's.

    Keras names a slot `optimizer/<slot>/<table>`, TensorFlow 1 `<table>/<slot>`.
    """
    parts = key.split("/")
    below = ("/".join(parts[start:]) for start in range(len(parts)))
    above = ("/".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return next(name for owner in (*below, *above) if (name := owner + names.IDS_SUFFIX) in tensors)
