"""Orders to a fleet: one after the other, signed, and each what it was when it was given."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hotdelta.chain import Node, Position, SigningKey
from hotdelta.errors import ManifestError, NameTakenError
from hotdelta.remote import layout
from hotdelta.remote.orders import Order, OrderBox, Verb
from hotdelta.remote.stores.memory import MemoryStore

KEY, OTHER_KEY = SigningKey(b"k" * 32), SigningKey(b"o" * 32)
NODE = Node(Position(3, 17), "a" * 32)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def box(store: MemoryStore) -> OrderBox:
    return OrderBox(store)


def give(box: OrderBox, verb: Verb = Verb.PIN, node: Node = NODE) -> Order:
    return box.give(verb, node, given_by="ops", key=KEY)


def test_the_highest_number_counts(box: OrderBox) -> None:
    assert box.newest(key=KEY) is None
    first = give(box)
    assert box.newest(key=KEY) == first
    second = give(box, Verb.RESUME, Node(Position(3, 20), "b" * 32))
    assert (first.number, second.number) == (1, 2)
    assert box.newest(key=KEY) == second
    assert (first.pinned, second.pinned) == (Position(3, 17), None)
    assert box.numbers() == [1, 2]
    assert box.read(1, key=KEY) == first


def test_who_knows_the_newest_asks_for_the_next_one_alone(box: OrderBox) -> None:
    assert box.find_newer(0, key=KEY) is None
    orders = [give(box) for _ in range(3)]
    assert box.find_newer(0, key=KEY) == orders[2]
    assert box.find_newer(2, key=KEY) == orders[2]
    assert box.find_newer(3, key=KEY) is None


def test_of_two_at_one_moment_one_is_given_and_the_other_told(
    store: MemoryStore, box: OrderBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LateBox(OrderBox):
        """Somebody else gives an order between its look and its own."""

        def numbers(self) -> list[int]:
            found = list(super().numbers())
            give(box)
            return found

    with pytest.raises(NameTakenError, match="order 1 at the same moment"):
        LateBox(store).give(Verb.RESUME, NODE, given_by="late", key=KEY)
    assert box.numbers() == [1]
    assert box.read(1, key=KEY).given_by == "ops"


def change(store: MemoryStore, **members: Any) -> None:
    name = layout.order_name(1)
    document = {**json.loads(store.get(name, max_bytes=10_000)), **members}
    store.put(name, json.dumps(document).encode())


@pytest.mark.parametrize(
    "members",
    [
        {"verb": "resume"},
        {"position": "3.16"},
        {"state_id": "b" * 32},
        {"given_by": "somebody"},
        {"given_at": "2020-01-01T00:00:00+00:00"},
        {"signature": "0" * 64},
    ],
    ids=lambda members: next(iter(members)),
)
def test_what_is_not_as_it_was_signed_is_refused(
    store: MemoryStore, box: OrderBox, members: dict[str, str]
) -> None:
    give(box)
    change(store, **members)
    with pytest.raises(ManifestError, match="not signed with this key"):
        box.newest(key=KEY)
    assert box.newest(key=None) is not None, "for those who only look"


def test_an_order_of_another_key_is_refused(box: OrderBox) -> None:
    give(box)
    with pytest.raises(ManifestError, match="not signed with this key"):
        box.newest(key=OTHER_KEY)


def test_an_order_cannot_be_given_again_under_a_later_number(store: MemoryStore, box: OrderBox) -> None:
    give(box)
    store.put(layout.order_name(2), store.get(layout.order_name(1), max_bytes=10_000))
    with pytest.raises(ManifestError, match="says that it is the order 1"):
        box.find_newer(1, key=KEY)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"x" * 10_000, b'{"format_version": 2}'],
    ids=["none", "list", "empty", "large", "newer"],
)
def test_what_is_no_order_is_refused(store: MemoryStore, box: OrderBox, content: bytes) -> None:
    store.put(layout.order_name(1), content)
    with pytest.raises(ManifestError, match="orders/0000000001"):
        box.newest(key=None)


def test_the_key_of_orders_signs_no_manifest_and_the_other_way_round() -> None:
    """The same secret would do for both: what is signed says what it is."""
    order = json.loads(Order(1, Verb.PIN, NODE, "ops", "now").to_json(KEY))
    signature = order.pop("signature")
    assert not KEY.has_signed_text(json.dumps(order).encode(), signature, purpose="another")
