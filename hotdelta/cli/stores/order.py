"""`hotdelta order STORE`: what all servers that follow a store are told, and telling them."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotdelta.chain import Kind, Node, Position, SigningKey
from hotdelta.cli.output import Cell, print_json, print_table
from hotdelta.errors import ConfigurationError, ObjectMissingError, RequestError
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.orders import Order, OrderBox, Verb
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store

KEY_FILE_VARIABLE = "HOTDELTA_ORDERS_KEY_FILE"


def run(options: argparse.Namespace) -> int:
    """0 when the order was given, or the orders were shown."""
    with contextlib.closing(open_store(options.store)) as store:
        if options.verb is None:
            _show(OrderBox(store), is_json=options.is_json)
        else:
            _give(store, options)
    return 0


def _show(box: OrderBox, *, is_json: bool) -> None:
    """Without a key nobody vouches for them."""
    orders = [box.read(number, key=None) for number in box.numbers()]
    if is_json:
        print_json({"orders": [_document(order) for order in orders]})
    elif not orders:
        print("no orders: every server serves the newest that it can")
    else:
        rows = [
            (
                str(order.number),
                Cell(order.verb, "yellow" if order.verb is Verb.PIN else "green"),
                str(order.node.position),
                order.given_at,
                order.given_by,
            )
            for order in reversed(orders)
        ]
        print_table(("order", "", "position", "given at", "by"), rows, align="rllll")


def _give(store: Store, options: argparse.Namespace) -> None:
    key = _read_key(options.key_file)
    verb = Verb(options.verb)
    if verb is Verb.RESUME and options.position is not None:
        raise ConfigurationError("an order to resume names no position", hint="leave it out")
    node = _find(store, Position.parse(options.position) if options.position is not None else None)
    order = OrderBox(store).give(verb, node, given_by=options.given_by or getpass.getuser(), key=key)
    if options.is_json:
        print_json(_document(order))
    elif verb is Verb.PIN:
        print(f"order {order.number} is given: servers with this key go to {node.position}, and stay there")
    else:
        print(f"order {order.number} is given: servers with this key follow again")


def _find(store: Store, wanted: Position | None) -> Node:
    """The state at a position, or the newest. Raises RequestError when the store has none."""
    log = CommitLog(store)
    newest = {kind: max(log.positions_after(kind, None), default=None) for kind in Kind}
    position = wanted or max((found for found in newest.values() if found is not None), default=None)
    if position is None:
        raise RequestError(
            f"{store.address} has no commits", hint="is this the address that trainers publish to?"
        )
    for kind in Kind:
        with contextlib.suppress(ObjectMissingError):
            return log.read(kind, position)[0].node
    raise RequestError(
        f"{store.address} has no commit at {position}",
        hint=f"`hotdelta log {store.address}` shows what it has",
    )


def _read_key(path: Path | None) -> SigningKey:
    given = path or os.environ.get(KEY_FILE_VARIABLE)
    if not given:
        raise ConfigurationError(
            "there is no key to sign an order with",
            hint=f"give --key-file, or set {KEY_FILE_VARIABLE}; servers have the same one (--orders-key-file)",
        )
    return SigningKey.read(Path(given))


def _document(order: Order) -> Mapping[str, Any]:
    return {
        "number": order.number,
        "verb": str(order.verb),
        "position": str(order.node.position),
        "state_id": order.node.state_id,
        "given_at": order.given_at,
        "given_by": order.given_by,
    }
