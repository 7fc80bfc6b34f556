"""Stores of objects: S3 and what speaks it, Google Cloud Storage, Azure. One library, obstore, and its errors in ours.

What obstore raises quotes requests and answers, in which tokens may stand: of it only what is known to be harmless is
told, and it is no cause of the error that is raised instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from hotdelta.chain.bundle.file_bytes import open_plainly
from hotdelta.errors import (
    ConfigurationError,
    NameTakenError,
    ObjectMissingError,
    ObjectTooLargeError,
    StoreError,
    UnfitStoreError,
)
from hotdelta.remote.stores.address import Address
from hotdelta.remote.stores.contract import Entry

if TYPE_CHECKING:
    from obstore.store import RetryConfig

    Library = S3Store | GCSStore | AzureStore

# A part of an upload, and how many are under way at once: so much memory does `put_file` take,
# and within the timeout of one request (30 s unless the address says otherwise) all of them must get through.
_PART_BYTES = 5 * 1024 * 1024
_PARTS_AT_ONCE = 4
_LISTED_AT_ONCE = 1000
# Over hiccups only: those who call know better how long to wait for a store that is away.
_RETRIES: RetryConfig = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=10),
    "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=2), "base": 2},
}
_CLIENT_OPTIONS = ("timeout", "connect_timeout")
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role of the machine",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or a service account of the machine",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or a managed identity",
}
# Where machines in a cloud ask for their credentials.
_ROLES = ("/latest/api/token", "/latest/meta-data", "169.254.", "/computeMetadata/", "/metadata/identity")

_IGNORED_RANGE = "Received non-partial response"
_STATUS = re.compile(r"non-2xx status code: (\d{3}(?: [A-Z][A-Za-z ]*)?)")
_REASON = re.compile(r"<(Code|Message)>([^<]{1,200})</")
_QUERY = re.compile(r"\?\S*")
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist")
_MAKE_BUCKET = "is there such a bucket? It has to be made before"
_BUSY = frozenset({408, 425, 429})


def open_objects(address: Address) -> ObjectStore:
    """Reaches for nothing yet. Raises ConfigurationError for options that the library refuses."""
    try:
        return ObjectStore(str(address), address.scheme, _open(address))
    except (exceptions.BaseError, ValueError) as error:
        raise ConfigurationError(
            f"{address} cannot be opened: {_first_line(error)}",
            hint="correct the options of the address, or the environment",
        ) from None


class ObjectStore:
    """Keeps the contract as far as its server does: see hotdelta.remote.stores.probe. Threads may share it."""

    def __init__(self, address: str, scheme: str, library: Library) -> None:
        self._address = address
        self._scheme = scheme
        self._library = library

    @property
    def address(self) -> str:
        return self._address

    def put_new(self, name: str, content: bytes) -> None:
        with self._translated("put", name):
            obstore.put(self._library, name, content, mode="create", use_multipart=False)

    def put(self, name: str, content: bytes) -> None:
        with self._translated("put", name):
            obstore.put(self._library, name, content, use_multipart=False)

    def put_file(self, name: str, path: Path) -> None:
        os.close(open_plainly(path))
        with self._translated("put", name):
            obstore.put(self._library, name, path, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def get(self, name: str, *, max_bytes: int) -> bytes:
        with self._translated("get", name):
            found = obstore.get(self._library, name)
            size = found.meta["size"]
            if size <= max_bytes:
                return found.bytes().to_bytes()
        raise ObjectTooLargeError(f"{name} of {self._address} has {size} bytes, more than {max_bytes}")

    def get_range(self, name: str, start: int, length: int) -> memoryview:
        with self._translated("get", name):
            try:
                if length:
                    return memoryview(obstore.get_range(self._library, name, start=start, length=length))
            except exceptions.GenericError:
                # No range of an object that ends before it: libraries and servers say so in words of their own.
                if obstore.head(self._library, name)["size"] > start:
                    raise
            else:
                obstore.head(self._library, name)
        return memoryview(b"")

    def list_after(self, prefix: str, after: str = "") -> Iterator[Entry]:
        with self._translated("list", prefix or "everything"):
            for page in obstore.list(
                self._library, prefix or None, offset=after or None, chunk_size=_LISTED_AT_ONCE
            ):
                for found in page:
                    # Servers exist that do not know the offset, and list all.
                    if found["path"] > after:
                        yield Entry(found["path"], found["size"])

    def delete(self, name: str) -> None:
        try:
            with self._translated("delete", name):
                obstore.delete(self._library, name)
        except ObjectMissingError:
            # Google and Azure say so; S3 does not.
            pass

    def when_put(self, name: str) -> float:
        """By the clock of the server, to the second; see hotdelta.remote.stores.probe."""
        with self._translated("get", name):
            return obstore.head(self._library, name)["last_modified"].timestamp()

    def close(self) -> None:
        """Connections go with the last reference."""

    @contextmanager
    def _translated(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise NameTakenError(f"{self._address} has an object {name} already") from None
        except FileNotFoundError as error:
            raise self._missing(verb, name, error) from None
        except exceptions.NotSupportedError:
            raise UnfitStoreError(
                f"{self._address} does not {verb} {name} on a condition",
                hint="conditional puts are switched off: take AWS_CONDITIONAL_PUT out of the environment",
            ) from None
        except exceptions.BaseError as error:
            raise self._failed(verb, name, error) from None

    def _missing(self, verb: str, name: str, error: FileNotFoundError) -> StoreError:
        text = str(error)
        if verb in ("get", "delete") and not _NO_BUCKET.search(text):
            return ObjectMissingError(f"{self._address} has no object {name}")
        return StoreError(f"{self._address} could not {verb} {name}: {_reason(text)}", hint=_MAKE_BUCKET)

    def _failed(self, verb: str, name: str, error: exceptions.BaseError) -> StoreError:
        text = _first_line(error)
        status = int(found[1][:3]) if (found := _STATUS.search(text)) else None
        is_credentials = any(role in text for role in _ROLES)
        is_refused = is_credentials or isinstance(
            error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError
        )
        hint = ""
        if is_ignored := _IGNORED_RANGE in text:
            hint = "the server sends all of an object when it is asked for a part: use another one"
        elif is_refused:
            hint = f"give it credentials that may do so ({_CREDENTIALS[self._scheme]}), and see that the clock is right"
        elif _NO_BUCKET.search(str(error)):
            hint = _MAKE_BUCKET
        elif status is None:
            hint = "is it up, can this machine reach it, and is its endpoint right?"
        return StoreError(
            f"{self._address} could not {verb} {name}: "
            + ("no credentials were found" if is_credentials else _reason(str(error))),
            retryable=not (is_refused or is_ignored) and (status is None or status >= 500 or status in _BUSY),
            hint=hint,
        )


def _open(address: Address) -> Library:
    options: dict[str, Any] = dict(address.options)
    client: dict[str, Any] = {name: options.pop(name) for name in _CLIENT_OPTIONS if name in options}
    if "ca_file" in options:
        client["root_certificate"] = _read_certificate(options.pop("ca_file"))
    if _is_plain_http(address):
        client["allow_http"] = True
    opened: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[address.scheme]
    library: Library = opened(
        address.place,
        prefix=address.path or None,
        config=options,
        client_options=client,
        retry_config=_RETRIES,
    )
    return library


def _is_plain_http(address: Address) -> bool:
    """The endpoint is of the user's own making, and says itself that it is not encrypted."""
    given = [address.option("endpoint")] + [
        os.environ.get(name) for name in _ENDPOINTS.get(address.scheme, ())
    ]
    endpoint = next((text for text in given if text), "")
    return endpoint.lower().startswith("http://") or address.option("use_emulator") == "true"


def _read_certificate(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"the ca_file {path} cannot be read: {error.strerror}", hint="give the path of a PEM file"
        ) from None


def _first_line(error: BaseException) -> str:
    """Without the query of any URL, in which a signature may stand."""
    return _QUERY.sub("", str(error).partition("\n\nDebug source:")[0])


def _reason(text: str) -> str:
    status = _STATUS.search(text)
    if status is None:
        line = _QUERY.sub("", text.partition("\n")[0])
        return line.rpartition(" - ")[2][:300]
    told = dict(_REASON.findall(text))
    # Azure tells the number of the request and the time in lines of their own, of which an escape may be left.
    said = (
        re.split(r"\n|\\n", told[key].strip())[0].rstrip(".") for key in ("Code", "Message") if key in told
    )
    return ", ".join([status[1].strip(), *said])
