"""Exports of what lies in a store, and into one. Both pass through a directory of this machine, which then goes."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter.version_directory import unfinished
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.position import Position
from hotdelta.errors import ConfigurationError
from hotdelta.given_directory import refuse_nested
from hotdelta.logs import event
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.publish.backlog import newest_position, positions_in
from hotdelta.remote.publish.spool import given_address
from hotdelta.remote.states import fetch_state
from hotdelta.remote.stores.address import Address
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from hotdelta.remote.trees import list_trees, put_new_tree
from hotdelta.signatures import MAX_EXPORT_VERSION

logger = logging.getLogger(__name__)

_NAME_OF_NONE = "model"


@contextmanager
def local_subject(given: Any, position: Position | None) -> Iterator[Any]:
    """What is to be exported; of the address of a store a directory with its newest state, or the one at `position`.

    Only what is served is fetched, into the system's directory for temporary files. Raises StoreError, ChainError,
    CommitError; ConfigurationError when the store holds nothing.
    """
    address = given_address(given)
    if address is None:
        yield given
        return
    with _working_directory(Address.parse(address)) as directory, closing(open_store(address)) as store:
        there = positions_in(CommitLog(store))
        fetched = fetch_state(
            store, directory, there=there, disk=Disk(), until=position, roles=names.SERVING_ROLES
        )
        if fetched is None:
            raise ConfigurationError(
                f"{store.address} holds no checkpoint{f' up to {position}' if position else ''}",
                hint="is it the address that the trainer was given, and has it published its first full?",
            )
        yield directory


def has_commits(given: str) -> bool:
    """Whether somebody has published at this address. Raises StoreError."""
    with closing(open_store(given)) as store:
        return newest_position(positions_in(CommitLog(store))) is not None


def export_into_store(export: Callable[[Path, int], Path], address: str, version: int | None) -> str:
    """Puts the version that `export` makes under this directory, with this number, into a store. Returns its address.

    A number that another exporter took meanwhile is left to it, unless it was asked for.
    """
    place = Address.parse(address)
    with _working_directory(place) as directory, closing(open_store(address)) as store:
        number = version or _next_version(store)
        if str(number) in list_trees(store):
            raise _exists(store, number)
        path = export(directory, number)
        while not put_new_tree(store, str(number), path):
            if version is not None:
                raise _exists(store, number)
            number = _next_version(store)
            path = path.rename(directory / str(number))
        exported = str(replace(place, path=f"{place.path}/{number}".lstrip("/")))
    event(logger, logging.INFO, "exported", path=exported)
    return exported


def refuse_nested_places(export_dir: str | Path, subject: Any) -> None:
    """Exports and the files of a trainer do not mix, in a store as little as here. Raises ConfigurationError."""
    exports, run = given_address(export_dir), given_address(subject)
    if exports is None and run is None:
        if isinstance(subject, str | Path):
            refuse_nested(Path(export_dir), Path(subject))
        return
    if exports is None or run is None:
        return
    first, second = Address.parse(exports), Address.parse(run)
    paths = [f"{address.path}/" for address in (first, second)]
    is_one_place = (first.scheme, first.place) == (second.scheme, second.place)
    if is_one_place and (paths[0].startswith(paths[1]) or paths[1].startswith(paths[0])):
        raise ConfigurationError(
            f"the exports at {first} and the checkpoints at {second} lie in one another",
            hint="give exports an address of their own, beside that of the checkpoints",
        )


@contextmanager
def _working_directory(address: Address) -> Iterator[Path]:
    """Named as the last part of the address: a model that gets no name has that of its directory."""
    with unfinished(Path(tempfile.mkdtemp(prefix="hotdelta-exporter-"))) as directory:
        named = directory / (address.path.rpartition("/")[2] or _NAME_OF_NONE)
        named.mkdir()
        yield named


def _next_version(store: Store) -> int:
    versions = [int(name) for name in list_trees(store) if name.isascii() and name.isdigit()]
    return max((version for version in versions if version <= MAX_EXPORT_VERSION), default=0) + 1


def _exists(store: Store, version: int) -> ConfigurationError:
    return ConfigurationError(
        f"{store.address} has a version {version} already",
        hint="leave `version` out for the next free number, or choose another",
    )
