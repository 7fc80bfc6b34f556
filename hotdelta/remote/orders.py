"""What a whole fleet is told through its store: to be at one state, or to follow again. The highest number counts.

An order is put under a number that has none, so of two who give one at once only one does, and the other is told. It is
signed with a key of its own: whoever may sign models need not be allowed to give orders, and a replica that knows the
key of orders cannot sign a model. It names a state by its id, which no other chain has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from hotdelta.chain.format.position import STATE_ID_HEX_DIGITS, Node, Position
from hotdelta.chain.format.untrusted_json import Fields
from hotdelta.chain.history.signing import SigningKey
from hotdelta.errors import ManifestError, NameTakenError, ObjectMissingError, ObjectTooLargeError
from hotdelta.remote import layout
from hotdelta.remote.stores.contract import Store, put_once

_FORMAT_VERSION = 1
_MAX_ORDER_BYTES = 8192
_PURPOSE = "hotdelta order to a fleet"
_SIGNATURE_DIGITS = 64


class Verb(StrEnum):
    PIN = "pin"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Order:
    """PIN: be at `node`, and stay there. RESUME: follow again; `node` is the newest state that its giver saw."""

    number: int
    verb: Verb
    node: Node
    given_by: str
    given_at: str

    @property
    def pinned(self) -> Position | None:
        return self.node.position if self.verb is Verb.PIN else None

    def to_json(self, key: SigningKey) -> bytes:
        signed = self._signed()
        document = {**json.loads(signed), "signature": key.sign_text(signed, purpose=_PURPOSE)}
        return json.dumps(document, indent=1).encode()

    @classmethod
    def from_json(cls, number: int, content: bytes, *, key: SigningKey | None) -> Order:
        """Raises ManifestError for what is no order of that number; with a key, also for what it did not sign."""
        where = layout.order_name(number)
        fields = Fields.parse(content, where)
        if fields.count("format_version") != _FORMAT_VERSION:
            raise ManifestError(f"{where} is of another format", hint="install a newer hotdelta")
        order = cls(
            fields.count("number"),
            Verb(fields.choice("verb", tuple(Verb))),
            Node(Position.parse(fields.text("position")), fields.hex("state_id", STATE_ID_HEX_DIGITS)),
            fields.text("given_by"),
            fields.text("given_at"),
        )
        if order.number != number:
            raise ManifestError(f"{where} says that it is the order {order.number}")
        signature = fields.hex("signature", _SIGNATURE_DIGITS)
        if key is not None and not key.has_signed_text(order._signed(), signature, purpose=_PURPOSE):
            raise ManifestError(
                f"{where} is not signed with this key of orders",
                hint="give orders and servers the same key, or find out who else writes to the store",
            )
        return order

    def _signed(self) -> bytes:
        document = {
            "format_version": _FORMAT_VERSION,
            "number": self.number,
            "verb": str(self.verb),
            "position": str(self.node.position),
            "state_id": self.node.state_id,
            "given_by": self.given_by,
            "given_at": self.given_at,
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


class OrderBox:
    """The orders in one store. Threads may share it. Every call may raise StoreError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find_newer(self, number: int, *, key: SigningKey | None) -> Order | None:
        """The newest order if it is later than this one; while it is not that takes one small request.

        Raises ManifestError when it cannot be read or trusted.
        """
        return self.newest(key=key) if self._is_there(number + 1) else None

    def newest(self, *, key: SigningKey | None) -> Order | None:
        """Raises ManifestError when it cannot be read or trusted."""
        numbers = self.numbers()
        return self.read(numbers[-1], key=key) if numbers else None

    def numbers(self) -> Sequence[int]:
        """Of all orders, in the order in which they were given."""
        found = (layout.order_number(entry.name) for entry in self._store.list_after(layout.ORDERS))
        return [number for number in found if number is not None]

    def read(self, number: int, *, key: SigningKey | None) -> Order:
        """Raises ManifestError when it cannot be read or trusted, ObjectMissingError."""
        try:
            content = self._store.get(layout.order_name(number), max_bytes=_MAX_ORDER_BYTES)
        except ObjectTooLargeError as error:
            raise ManifestError(f"{layout.order_name(number)}: {error.message}") from error
        return Order.from_json(number, content, key=key)

    def give(self, verb: Verb, node: Node, *, given_by: str, key: SigningKey) -> Order:
        """The order as it was given. Raises NameTakenError when another one came first."""
        numbers = self.numbers()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        order = Order((numbers[-1] if numbers else 0) + 1, verb, node, given_by, now)
        if not put_once(self._store, layout.order_name(order.number), order.to_json(key)):
            raise NameTakenError(
                f"somebody else gave the order {order.number} at the same moment",
                hint="look at it, and give yours again if it is still meant",
            )
        return order

    def _is_there(self, number: int) -> bool:
        try:
            self._store.get_range(layout.order_name(number), 0, 1)
        except ObjectMissingError:
            return False
        return True
