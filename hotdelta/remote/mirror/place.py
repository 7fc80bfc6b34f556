"""Where on this machine the mirror of a store lies, and what a second one is told that wants to be there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hotdelta.chain.bundle.digest import digest_bytes
from hotdelta.directory_lock import Wording

CACHE_VARIABLE = "XDG_CACHE_HOME"

_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_READABLE = 48
_DIGITS = 12

WORDING = Wording(
    name="mirror",
    taken="another server mirrors into",
    taken_hint="give each server on this machine a --mirror-dir of its own, or stop the other one first",
    unusable_hint="give --mirror-dir, a directory that the server may write to",
)


def default_root() -> Path:
    """The directory of this user for what can be fetched again."""
    given = os.environ.get(CACHE_VARIABLE)
    return (Path(given) if given else Path.home() / ".cache") / "hotdelta" / "mirrors"


def directory_for(root: Path, address: str) -> Path:
    """One for each address, with a name in which people know it again."""
    place = address.partition("?")[0]
    readable = _OTHER_CHARACTERS.sub("-", place).strip("-.")[:_MOST_READABLE]
    return root / f"{readable}-{digest_bytes(address.encode())[:_DIGITS]}"
