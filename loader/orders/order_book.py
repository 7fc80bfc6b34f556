"""Keeps the orders of an operator over a restart: a server that was rolled back must not come back with the bad state.

One small file in the state directory.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from hotdelta.chain import Disk
from hotdelta.chain.store.small_file import replace_file
from hotdelta.errors import ConfigurationError
from hotdelta.logs import event
from loader.files.state_documents import (
    MALFORMED,
    decode,
    encode,
    nodes_from_json,
    nodes_to_json,
    position_from_json,
    position_to_json,
)
from loader.settings import LoaderSettings
from loader.standing_orders import Orders

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
ORDERS_FILE = "orders.json"


class OrderBook:
    """The orders that hold now, and those that a restart would begin with. Belongs to the updater thread.

    A pin in the settings is no order: it takes the place of a kept pin in every process that is started with it, until
    an order is given there, and is not kept. A process that is started without it knows only what was ordered.
    """

    def __init__(self, settings: LoaderSettings, *, disk: Disk | None = None) -> None:
        """Raises ConfigurationError when kept orders cannot be read, or could not be kept."""
        self._pin = settings.pin
        self._disk = disk or Disk()
        self._path = settings.state_dir / ORDERS_FILE if settings.state_dir is not None else None
        self._kept = Orders()
        if self._path is not None:
            self._kept = self._open(self._path)
        self.orders = self._at_restart()
        if self._is_pin_bad():
            event(logger, logging.WARNING, "the pin was rolled back, and is left out", pin=self._pin)

    @property
    def is_kept(self) -> bool:
        """Whether a restart would begin with the orders that hold now. May be asked by any thread."""
        return self.orders == self._at_restart()

    def keep(self) -> None:
        """Make the present orders durable. They hold even when that fails, which is logged and shows in `is_kept`."""
        ordered = self._ordered()
        if self._path is None or ordered == self._kept:
            return
        try:
            replace_file(self._disk, self._path, _encode(ordered))
        except OSError as error:
            event(
                logger,
                logging.ERROR,
                "orders cannot be kept, a restart forgets them",
                path=self._path,
                reason=error.strerror,
            )
            return
        self._kept = ordered

    def _ordered(self) -> Orders:
        pin = self._kept.pin if self.orders.is_pin_a_setting else self.orders.pin
        return replace(self.orders, pin=pin, is_pin_a_setting=False)

    def _at_restart(self) -> Orders:
        if self._pin is None or self._is_pin_bad():
            return replace(self._kept)
        return replace(self._kept, pin=self._pin, is_pin_a_setting=True)

    def _is_pin_bad(self) -> bool:
        """A server that was rolled back from its own pin must come back, and not with what was undone."""
        return self._pin is not None and any(node.position == self._pin for node in self._kept.bad)

    def _open(self, path: Path) -> Orders:
        try:
            kept = _decode(path.read_bytes())
        except FileNotFoundError:
            return self._begin(path)
        except OSError as error:
            raise _unusable(path, error.strerror) from error
        except MALFORMED as error:
            raise _unusable(path, f"it is malformed: {error}") from error
        event(logger, logging.INFO, "orders were kept", path=path, pin=kept.pin, rolled_back=len(kept.bad))
        return kept

    def _begin(self, path: Path) -> Orders:
        """Written at once: a directory that cannot hold orders should be heard of before the first emergency."""
        try:
            replace_file(self._disk, path, _encode(Orders()))
        except OSError as error:
            raise _unusable(path, error.strerror) from error
        return Orders()


def _encode(orders: Orders) -> bytes:
    document = {
        "pin": position_to_json(orders.pin),
        "rolled_back": nodes_to_json(orders.bad),
        "released": nodes_to_json(orders.released),
    }
    return encode(document, version=FORMAT_VERSION)


def _decode(content: bytes) -> Orders:
    """Raises what is in MALFORMED."""
    document = decode(content, version=FORMAT_VERSION)
    return Orders(
        position_from_json(document["pin"]),
        frozenset(nodes_from_json(document["rolled_back"])),
        frozenset(nodes_from_json(document["released"])),
    )


def _unusable(path: Path, reason: str | None) -> ConfigurationError:
    return ConfigurationError(
        f"{path}, where orders are kept, cannot be used: {reason}",
        hint="make it readable and writable, or move it away to start without orders",
    )
