"""From an address to a store. The libraries are extras, and only the one that an address needs is imported."""

from __future__ import annotations

import threading
from pathlib import Path

from hotdelta.errors import ConfigurationError
from hotdelta.remote.stores.address import Address
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.directory import DirectoryStore
from hotdelta.remote.stores.memory import MemoryStore

# One for each name within this process, so that a trainer and a server in it see the same.
_in_memory: dict[str, MemoryStore] = {}
_in_memory_lock = threading.Lock()


def open_store(text: str) -> Store:
    """The store at an address. Reaches for nothing yet: the first verb does, and may find that nobody answers.

    Raises ConfigurationError for what is no address, has a credential in it, or needs a library that is not installed.
    """
    address = Address.parse(text)
    match address.scheme:
        case "memory":
            with _in_memory_lock:
                return _in_memory.setdefault(str(address), MemoryStore(str(address)))
        case "file":
            return DirectoryStore(str(address), Path(address.path))
        case "hdfs":
            return _open_hdfs(address)
        case _:
            return _open_objects(address)


def _open_objects(address: Address) -> Store:
    try:
        from hotdelta.remote.stores.objects import open_objects
    except ImportError as error:
        raise _missing_library(address, "obstore", "s3") from error
    return open_objects(address)


def _open_hdfs(address: Address) -> Store:
    try:
        from hotdelta.remote.stores.hdfs import open_hdfs
    except ImportError as error:
        raise _missing_library(address, "hdfs-native", "hdfs") from error
    return open_hdfs(address)


def _missing_library(address: Address, library: str, extra: str) -> ConfigurationError:
    return ConfigurationError(
        f"{address} needs {library}, which is not installed", hint=f"run: pip install 'hotdelta[{extra}]'"
    )
