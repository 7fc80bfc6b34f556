"""A server obeys what its fleet is told through the store: the newest order, once, and only one that it can trust."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotdelta.chain import Node, Position, SigningKey
from hotdelta.errors import ConfigurationError, ManifestError, RequestError
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.orders import Order, OrderBox, Verb
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.memory import MemoryStore
from server.models.fleet_orders import KEPT_FILE, FleetOrders
from tests.chain.manifests import delta, full
from tests.remote.tried_stores import StumblingStore
from tests.waiting import wait_until

KEY = SigningKey(b"k" * 32)
HISTORY = (full("1.1"), delta("1.2", "1.1"), delta("1.3", "1.2"))


class Obedient:
    """Carries out what it can: a position is `missing` until it was brought."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.missing = False

    def pin(self, position: Position | None) -> Node:
        if self.missing:
            raise RequestError(f"nothing leads to {position}")
        self.done.append(f"pin {position}")
        return HISTORY[0].node

    def resume(self) -> Node | None:
        self.done.append("resume")
        return None


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for manifest in HISTORY:
        CommitLog(store).add(manifest, manifest.to_json())
    return store


@pytest.fixture
def model() -> Obedient:
    return Obedient()


def following(store: Store, model: Obedient, state_dir: Path | None = None) -> FleetOrders:
    orders = FleetOrders(store, KEY, state_dir=state_dir, poll_seconds=0.01)
    orders.obey(model)
    return orders


def give(store: MemoryStore, verb: Verb, node: Node = HISTORY[1].node, *, key: SigningKey = KEY) -> Order:
    return OrderBox(store).give(verb, node, given_by="ops", key=key)


def test_each_order_is_carried_out_once_and_only_the_newest(store: MemoryStore, model: Obedient) -> None:
    orders = following(store, model)
    assert orders.first() is None
    orders.look()
    assert (model.done, orders.wanted) == ([], None)
    give(store, Verb.PIN)
    orders.look()
    orders.look()
    assert (model.done, orders.wanted) == (["pin 1.2"], Position(1, 2))
    for verb in (Verb.PIN, Verb.PIN, Verb.RESUME):
        give(store, verb)
    orders.look()
    assert (model.done, orders.wanted) == (["pin 1.2", "resume"], None)


def test_a_server_that_starts_begins_at_the_ordered_position(store: MemoryStore, model: Obedient) -> None:
    give(store, Verb.PIN)
    orders = following(store, model)
    assert orders.first() == Position(1, 2)
    orders.look()
    assert model.done == [], "it was made with that pin"
    give(store, Verb.RESUME)
    orders.look()
    assert model.done == ["resume"]
    assert following(store, model).first() is None


def test_a_position_that_is_on_its_way_is_waited_for(store: MemoryStore, model: Obedient) -> None:
    orders = following(store, model)
    model.missing = True
    give(store, Verb.PIN)
    orders.look()
    assert (model.done, orders.wanted) == ([], Position(1, 2))
    model.missing = False
    orders.look()
    assert model.done == ["pin 1.2"]


def test_what_is_not_signed_with_the_key_is_not_obeyed(store: MemoryStore, model: Obedient) -> None:
    give(store, Verb.PIN, key=SigningKey(b"o" * 32))
    orders = following(store, model)
    assert orders.first() is None
    with pytest.raises(ManifestError, match="not signed"):
        orders.look()
    assert model.done == []


@pytest.mark.parametrize("verb", Verb)
def test_an_order_for_another_chain_is_not_obeyed(store: MemoryStore, model: Obedient, verb: Verb) -> None:
    """Signed with the right key, and put here by who may write to the store."""
    give(store, verb, replace(HISTORY[1].node, state_id="f" * 32))
    orders = following(store, model)
    assert orders.first() is None
    with pytest.raises(ManifestError, match="another state"):
        orders.look()
    assert model.done == []


def test_a_position_that_the_chain_never_had_is_not_obeyed(store: MemoryStore, model: Obedient) -> None:
    give(store, Verb.PIN, Node(Position(9, 9), "f" * 32))
    with pytest.raises(ManifestError, match="does not have"):
        following(store, model).look()


def test_orders_that_were_removed_are_missed_after_a_restart(
    store: MemoryStore, model: Obedient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    give(store, Verb.PIN)
    give(store, Verb.RESUME)
    assert following(store, model, tmp_path).first() is None
    assert (tmp_path / KEPT_FILE).is_file()
    store.delete(layout.order_name(2))
    assert following(store, model, tmp_path).first() is None, "the order 1 is not new"
    assert "this server has obeyed 2" in caplog.text
    assert following(store, model).first() == Position(1, 2), "who kept nothing cannot know"


def test_what_was_kept_and_cannot_be_read_is_said_before_anything_is_served(
    store: MemoryStore, tmp_path: Path
) -> None:
    (tmp_path / KEPT_FILE).write_text("{}")
    with pytest.raises(ConfigurationError, match="move it away"):
        FleetOrders(store, KEY, state_dir=tmp_path)


def test_a_store_that_is_away_at_the_start_is_asked_again(
    store: MemoryStore, model: Obedient, caplog: pytest.LogCaptureFixture
) -> None:
    give(store, Verb.PIN)
    orders = following(StumblingStore(store, fails_at=1), model)
    assert orders.first() is None
    assert "cannot be read" in caplog.text
    orders.start()
    wait_until(lambda: model.done == ["pin 1.2"], lambda: f"an order; {model.done}")
    orders.stop()


def test_an_order_that_was_obeyed_before_a_restart_holds_also_when_the_store_was_away_at_the_start(
    store: MemoryStore, model: Obedient, tmp_path: Path
) -> None:
    give(store, Verb.PIN)
    assert following(store, model, tmp_path).first() == Position(1, 2)
    restarted = following(StumblingStore(store, fails_at=1), model, tmp_path)
    assert restarted.first() == Position(1, 2), "not what came after it, which may be why it was ordered"
    restarted.look()
    restarted.look()
    assert (model.done, restarted.wanted) == (["pin 1.2"], Position(1, 2))
    give(store, Verb.RESUME)
    restarted.look()
    assert following(StumblingStore(store, fails_at=1), model, tmp_path).first() is None


def test_what_an_older_server_kept_is_read(store: MemoryStore, model: Obedient, tmp_path: Path) -> None:
    (tmp_path / KEPT_FILE).write_text('{"format_version": 1, "number": 1}')
    give(store, Verb.PIN)
    assert following(StumblingStore(store, fails_at=1), model, tmp_path).first() is None
    assert following(store, model, tmp_path).first() == Position(1, 2)


def test_an_order_to_follow_again_that_came_while_a_server_was_down_is_carried_out_once(
    store: MemoryStore, model: Obedient, tmp_path: Path
) -> None:
    """The model keeps its pin where the server keeps the number of the order."""
    give(store, Verb.PIN)
    following(store, model, tmp_path).look()
    give(store, Verb.RESUME)
    restarted = following(store, model, tmp_path)
    assert restarted.first() is None
    restarted.look()
    restarted.look()
    assert model.done == ["pin 1.2", "resume"]
    for fails_at in (1, 99):
        again = following(StumblingStore(store, fails_at=fails_at), model, tmp_path)
        assert again.first() is None
        again.look()
    assert model.done == ["pin 1.2", "resume"], "what this server is told by itself since then holds"


def test_an_order_that_fails_for_another_reason_is_tried_again(
    store: MemoryStore, model: Obedient, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, pin = iter([RuntimeError("out of memory")]), model.pin

    def fail_once(position: Position | None) -> Node:
        for error in failures:
            raise error
        return pin(position)

    monkeypatch.setattr(model, "pin", fail_once)
    orders = following(store, model)
    orders.start()
    give(store, Verb.PIN)
    wait_until(lambda: model.done == ["pin 1.2"], lambda: f"an order; {model.done}")
    orders.stop()
