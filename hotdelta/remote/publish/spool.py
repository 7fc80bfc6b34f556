"""Spools: the directories of this machine in which training writes when it was given the address of a store.

The one place where an address that somebody gave for a checkpoint directory becomes a path. All else sees the path, and
asks here whether something is to be done for the store.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from hotdelta.chain.disk import Disk
from hotdelta.chain.store.small_file import replace_file
from hotdelta.chain.write_failure import translated
from hotdelta.errors import ConfigurationError
from hotdelta.given_directory import to_directory
from hotdelta.remote.stores.address import Address, is_address

SPOOL_VARIABLE = "HOTDELTA_SPOOL"
POSTPONE, WAIT = "postpone", "wait"
# Beside the chain: whose spool this is.
MARKER = ".store.json"

_DEFAULT_BYTES = 10 * 1024**3
# A second a delta, so long a store was away, or is slow, before what is between is not worth its requests.
FOLD_DELTAS_ABOVE = 64
_SLUG = re.compile(r"[^A-Za-z0-9.-]+")
# What is left of an address when somebody made a Path of it.
_ADDRESS_AS_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
# Fulls that stay in a spool. The store has the others; the second is for a machine that damages the newest.
MOST_FULLS = 2


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    """Where training writes when it is given the address of a store, and how long what it wrote may wait for that.

    `directory`: None for one of this address under the directory that HOTDELTA_SPOOL names, or the user's cache.
    `max_bytes`: what deltas that are not published may take. Then `when_full` says what becomes of training: "postpone"
    takes no more cuts until there is room, so that the next delta has all of it; "wait" lets training wait.
    `publish_timeout_secs`: how long the end of training waits until everything is published.
    `fold_deltas_above`: when more deltas wait, those that follow each other are published as one; None: never.
    """

    directory: Path | None = None
    max_bytes: int = _DEFAULT_BYTES
    when_full: str = POSTPONE
    publish_timeout_secs: float = 60.0
    fold_deltas_above: int | None = FOLD_DELTAS_ABOVE

    def __post_init__(self) -> None:
        if not _is_number(self.max_bytes, Integral) or self.max_bytes < 1:
            raise ConfigurationError(
                f"spool_bytes is {self.max_bytes!r}", hint="give a whole number of bytes, at least 1"
            )
        if self.when_full not in (POSTPONE, WAIT):
            raise ConfigurationError(
                f"when_spool_is_full is {self.when_full!r}", hint=f'give "{POSTPONE}" or "{WAIT}"'
            )
        seconds = self.publish_timeout_secs
        if not _is_number(seconds, Real) or not 0 <= seconds < math.inf:
            raise ConfigurationError(
                f"publish_timeout_secs is {seconds!r}", hint="give seconds, 0 to wait for nothing"
            )
        above = self.fold_deltas_above
        if above is not None and (not _is_number(above, Integral) or above < 1):
            raise ConfigurationError(
                f"fold_deltas_above is {above!r}", hint="give a whole number of deltas, at least 1, or None"
            )

    @classmethod
    def of(
        cls,
        spool_dir: str | Path | None,
        spool_bytes: int | None,
        when_spool_is_full: str,
        publish_timeout_secs: float,
        fold_deltas_above: int | None,
    ) -> SpoolOptions:
        """As users say it. Raises ConfigurationError."""
        return cls(
            None if spool_dir is None else to_directory(spool_dir, "spool_dir").absolute(),
            _DEFAULT_BYTES if spool_bytes is None else spool_bytes,
            when_spool_is_full,
            publish_timeout_secs,
            fold_deltas_above,
        )


@dataclass(frozen=True, slots=True)
class Spool:
    """A directory whose commits go to a store."""

    directory: Path
    address: str
    options: SpoolOptions = field(default_factory=SpoolOptions)


_spools: dict[Path, Spool] = {}
_spools_lock = threading.Lock()


def to_run_directory(
    given: Any, options: SpoolOptions | None = None, *, name: str = "checkpoint_dir"
) -> Path:
    """The directory to train in: the path that was given, or the spool of the address that was given.

    Raises ConfigurationError for what is neither. `options` count for an address only.
    """
    address = given_address(given)
    if address is None:
        return to_directory(given, name)
    options = options or SpoolOptions()
    public = str(Address.parse(address))
    directory = (options.directory or default_directory(public)).absolute()
    with _spools_lock:
        _spools[directory.resolve()] = Spool(directory, public, options)
    return directory


def check_run_directory(given: Any, *, name: str = "checkpoint_dir") -> None:
    """Raises ConfigurationError for what `to_run_directory` would refuse."""
    address = given_address(given)
    if address is None:
        to_directory(given, name)
    else:
        Address.parse(address)


def given_address(given: Any) -> str | None:
    """The address that was given in place of a path, also as a Path, which lost a slash of it."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    if not isinstance(text, str):
        return None
    if isinstance(given, os.PathLike):
        text = _ADDRESS_AS_PATH.sub(_with_slashes, text)
    return text if is_address(text) else None


def default_directory(address: str) -> Path:
    """Of this address: under HOTDELTA_SPOOL, or the cache of the user."""
    given = os.environ.get(SPOOL_VARIABLE)
    base = to_directory(given, SPOOL_VARIABLE) if given else _user_cache() / "hotdelta" / "spool"
    readable = _SLUG.sub("-", address.partition("?")[0]).strip("-")[-60:]
    return base / f"{readable}-{hashlib.sha256(address.encode()).hexdigest()[:10]}"


def find_spool(directory: Path) -> Spool | None:
    """What this process knows of it. None: it is a directory like any."""
    with _spools_lock:
        return _spools.get(directory.resolve())


def mark(spool: Spool, disk: Disk, *, is_fit: bool = False) -> None:
    """Leaves in the directory whose spool it is; and, once that is known, that its store keeps what it promises.

    A chain that lies in it already goes on, and is published. Raises ConfigurationError when it is another store's, and
    CommitError.
    """
    marked = marked_address(spool.directory)
    if marked not in (None, spool.address):
        raise ConfigurationError(
            f"{spool.directory} is the spool of {marked}, not of {spool.address}",
            hint="give every address a spool of its own",
        )
    if marked is not None and not is_fit:
        return
    with translated("marking a spool", spool.directory):
        disk.make_directory(spool.directory)
        content = json.dumps({"store": spool.address, "is_fit": is_fit}).encode()
        replace_file(disk, spool.directory / MARKER, content)


def refuse_unpublished(directory: Path) -> None:
    """A spool that is trained in by its path would use up run numbers of which its store knows nothing.

    Raises ConfigurationError.
    """
    address = marked_address(directory)
    if address is not None:
        raise ConfigurationError(
            f"{directory} is the spool of {address}, and nothing that is saved in it by its path would be published",
            hint=f"give {address} as the checkpoint directory, and this path as spool_dir; or remove {MARKER} in it",
        )


def marked_address(directory: Path) -> str | None:
    address = _read_marker(directory).get("store")
    return address if isinstance(address, str) else None


def is_found_fit(spool: Spool) -> bool:
    return _read_marker(spool.directory).get("is_fit") is True


def _read_marker(directory: Path) -> dict[str, Any]:
    try:
        document = json.loads((directory / MARKER).read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _user_cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return Path(given) if given else Path.home() / ".cache"


def _with_slashes(match: re.Match[str]) -> str:
    return f"{match[1]}:///" if match[1].lower() == "file" else f"{match[1]}://"
