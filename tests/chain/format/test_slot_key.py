"""Slots of TensorFlow 1 have the name of their variable before their own; so may layers have."""

from __future__ import annotations

import pytest

from hotdelta.chain.format.slot_key import Shape, is_slot_key

PARAMETERS = ("user", "user/dense/kernel", "user/bn/gamma")


@pytest.mark.parametrize(
    "key, shape, is_slot",
    [
        ("user/Adagrad", (8, 4), True),
        ("user/rows_seen", (8,), True),
        ("user/my/Adam_1", (8, 4), True),
        ("user", (8, 4), False),
        ("users/Adagrad", (8, 4), False),
        ("user/counter", (), False),
        ("user/mean", (4,), False),
        ("user/bn/moving_mean", (8,), False),
        ("user/bn/moving_mean", (8, 4), False),
        ("user/dense/kernel/Adagrad", (4, 8), False),
        ("user/dense/kernel/Adagrad", (8, 4), False),
    ],
)
def test_a_slot_has_the_rows_of_its_owner_and_no_layer_beside_it(
    key: str, shape: Shape, is_slot: bool
) -> None:
    assert is_slot_key(key, shape, owner="user", owner_shape=(8, 4), parameters=PARAMETERS) is is_slot
