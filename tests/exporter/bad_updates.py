"""Every way in which a delta or a full can be wrong, as changes to one that is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hotdelta.chain.format.position import Node, encode_identity
from tests.exporter.bundles import (
    FIRST,
    ITEMS,
    SECOND,
    THIRD,
    USERS,
    WIDTH,
    Array,
)

Damage = Callable[[dict[str, Array]], None]


def _set(name: str, value: Any) -> Damage:
    def damage(tensors: dict[str, Array]) -> None:
        tensors[name] = value

    return damage


def _remove(name: str) -> Damage:
    def damage(tensors: dict[str, Array]) -> None:
        del tensors[name]

    return damage


BAD_DELTAS: dict[str, Damage] = {
    "parent_of_another_state": _set("hotdelta-identity", np.array(encode_identity(THIRD, SECOND), np.int64)),
    "parent_at_the_same_position_with_another_state_id": _set(
        "hotdelta-identity", np.array(encode_identity(SECOND, Node(FIRST.position, "ac" * 16)), np.int64)
    ),
    "id_beyond_the_second_table": _set("items-ids", np.array([7, ITEMS], np.int64)),
    "id_beyond_the_first_table": _set("users-ids", np.array([0, 3, USERS], np.int64)),
    "negative_id": _set("items-ids", np.array([-1, 29], np.int64)),
    "duplicate_id": _set("items-ids", np.array([7, 7], np.int64)),
    "ids_out_of_order": _set("items-ids", np.array([29, 7], np.int64)),
    "rows_of_another_width": _set("items-rows", np.zeros((2, WIDTH + 1), np.float16)),
    "rows_of_another_rank": _set("items-rows", np.zeros((2, WIDTH, 1), np.float16)),
    "rows_without_columns": _set("items-rows", np.zeros(2, np.float16)),
    "more_rows_than_ids": _set("items-rows", np.zeros((3, WIDTH), np.float16)),
    "more_ids_than_rows": _set("items-ids", np.array([7, 8, 29], np.int64)),
    "ids_of_another_rank": _set("items-ids", np.array([[7, 29]], np.int64)),
    "rows_of_another_dtype": _set("items-rows", np.zeros((2, WIDTH), np.float32)),
    "ids_of_another_dtype": _set("items-ids", np.array([7, 29], np.int32)),
    "value_of_another_shape": _set("kernel-value", np.zeros((1, WIDTH + 1), np.float32)),
    "value_of_another_shape_with_as_many_elements": _set(
        "kernel-value", np.zeros((1, 2, WIDTH // 2), np.float32)
    ),
    "value_without_leading_axis": _set("kernel-value", np.zeros(WIDTH, np.float32)),
    "two_values": _set("bias-value", np.zeros(2, np.float32)),
    "scalar_value": _set("bias-value", np.float32(1)),
    "short_identity": _set("hotdelta-identity", np.array(encode_identity(SECOND, FIRST)[:7], np.int64)),
    "long_identity": _set("hotdelta-identity", np.array([*encode_identity(SECOND, FIRST), 1], np.int64)),
    "step_with_an_axis": _set("hotdelta-step", np.array([101], np.int64)),
    "missing_rows": _remove("items-rows"),
    "missing_identity": _remove("hotdelta-identity"),
}


BAD_FULLS: dict[str, Damage] = {
    "table_of_another_width": _set("users", np.zeros((USERS, WIDTH + 1), np.float32)),
    "table_with_fewer_rows": _set("users", np.zeros((USERS - 1, WIDTH), np.float32)),
    "table_transposed": _set("users", np.zeros((WIDTH, USERS), np.float32)),
    "table_of_another_dtype": _set("users", np.zeros((USERS, WIDTH), np.float64)),
    "scalar_with_an_axis": _set("bias", np.zeros(1, np.float32)),
    "short_identity": _set("hotdelta-identity", np.zeros(4, np.int64)),
    "step_with_an_axis": _set("hotdelta-step", np.zeros(1, np.int64)),
    "missing_table": _remove("users"),
}
