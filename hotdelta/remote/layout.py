"""Every name in a store, made and read in one place. Names of commits sort as their positions do.

```
head                                              which commits are the newest: a hint, which decides nothing
claims/0000000003                                 the run number 3 was given to a trainer
log/fulls/0000000003-0000000017                   the manifest of the full 3.17, byte for byte
log/deltas/0000000003-0000000017                  that of the delta 3.17
data/0000000003-0000000017-<state id>/<file>      the files of both
trees/<name>                                      what a directory holds: a serving graph, an export; put last
trees-data/<name>/<digest of the list>/<digest>   its files
schemas/schema-<12 hex digits>.json
orders/0000000001                                 what the whole fleet is told: the highest number counts
```

A name in `log` or `trees` is what makes a commit exist for readers, and is put with `put_new` when all that it names is
there. The state id is in the names of data, since two trainers that do not know of each other may both save a 3.17.
"""

from __future__ import annotations

import re

from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.format.position import MAX_NUMBER, Node, Position

HEAD = "head"
CLAIMS = "claims/"
ORDERS = "orders/"
DATA = "data/"
SCHEMAS = "schemas/"
TREES = "trees/"
TREES_DATA = "trees-data/"

_LOGS = {Kind.FULL: "log/fulls/", Kind.DELTA: "log/deltas/"}
_DIGITS = len(str(MAX_NUMBER))
_POSITION = re.compile(rf"([0-9]{{{_DIGITS}}})-([0-9]{{{_DIGITS}}})")


def log_prefix(kind: Kind) -> str:
    return _LOGS[kind]


def log_name(kind: Kind, position: Position) -> str:
    return f"{_LOGS[kind]}{_sortable(position)}"


def position_of(name: str) -> Position | None:
    """The position in the name of a log entry; None for a name that is none."""
    match = _POSITION.fullmatch(name.rpartition("/")[2])
    try:
        return Position(int(match[1]), int(match[2])) if match else None
    except ValueError:
        return None


def data_prefix(node: Node) -> str:
    return f"{DATA}{_sortable(node.position)}-{node.state_id}/"


def node_of(name: str) -> Node | None:
    """Whose file an object in `data` is; None for a name that is none."""
    parts = name.split("/")
    place, dash, state_id = (
        parts[1].rpartition("-") if len(parts) == 3 and f"{parts[0]}/" == DATA else ("",) * 3
    )
    position = position_of(place) if dash else None
    return None if position is None else Node(position, state_id)


def data_name(manifest: Manifest, file_name: str) -> str:
    return f"{data_prefix(manifest.node)}{file_name}"


def claim_name(run: int) -> str:
    return f"{CLAIMS}{run:0{_DIGITS}}"


def claimed_run(name: str) -> int | None:
    return _number(name.removeprefix(CLAIMS))


def order_name(number: int) -> str:
    return f"{ORDERS}{number:0{_DIGITS}}"


def order_number(name: str) -> int | None:
    return _number(name.removeprefix(ORDERS))


def tree_name(name: str) -> str:
    return f"{TREES}{name}"


def tree_data_name(name: str, list_digest: str, digest: str) -> str:
    return f"{TREES_DATA}{name}/{list_digest}/{digest}"


def _sortable(position: Position) -> str:
    return f"{position.run:0{_DIGITS}}-{position.seq:0{_DIGITS}}"


def _number(digits: str) -> int | None:
    return int(digits) if len(digits) == _DIGITS and digits.isascii() and digits.isdigit() else None
