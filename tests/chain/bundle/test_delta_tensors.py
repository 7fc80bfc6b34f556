"""Whose ids the rows of a slot have: the delta says it, or the name of the slot does."""

from __future__ import annotations

import pytest

from hotdelta.chain.bundle.delta_tensors import ids_tensor

TABLES = ["items", "momentums/items", "inner/items", "slot/items", "user", "user/bag", "Adagrad"]
WITH_IDS = {f"{key}-ids" for key in [*TABLES, "optimizer/sparse/items"]}


@pytest.mark.parametrize(
    "key, owner",
    [
        ("items", "items"),
        ("momentums/items", "momentums/items"),
        ("optimizer/momentums/items", "items"),
        ("optimizer/momentums/momentums/items", "momentums/items"),
        ("optimizer/inner/momentums/items", "items"),
        ("optimizer/inner/inner/momentums/items", "items"),
        ("optimizer/optimizers/1/momentums/items", "items"),
        ("optimizer/second/velocities/items", "items"),
        ("optimizer/sparse/items", "optimizer/sparse/items"),
        ("slots/slot/items", "items"),
        ("slots/slot/slot/items", "slot/items"),
        ("user/Adagrad", "user"),
        ("user/bag/Adagrad", "user/bag"),
        ("user/my/Adam_1", "user"),
        ("anything/items", "items"),
        ("nothing/of/it", "nothing/of/it"),
    ],
)
def test_the_name_of_a_slot_tells_its_table(key: str, owner: str) -> None:
    assert ids_tensor(WITH_IDS, key) == f"{owner}-ids"


def test_a_table_that_is_known_counts_before_the_name_and_own_ids_before_both() -> None:
    assert ids_tensor(WITH_IDS, "optimizer/second/momentums/items", owner="items") == "items-ids"
    assert ids_tensor(WITH_IDS, "optimizer/sparse/items", owner="items") == "optimizer/sparse/items-ids"
