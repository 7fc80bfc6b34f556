"""Where a store is, as people write it: `s3://bucket/prefix?endpoint=http://10.0.0.7:8333&region=eu-1`.

An address never holds a credential: it is written into logs, manifests and status pages, and every user of a machine
sees it among the arguments of a process. Credentials come from where the libraries find them (docs/remote.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from hotdelta.errors import ConfigurationError

_CLIENT = frozenset({"timeout", "connect_timeout", "ca_file"})
# What may stand behind the question mark; none of it is secret.
OPTIONS = {
    "s3": _CLIENT
    | {
        "endpoint",
        "region",
        "virtual_hosted_style_request",
        "skip_signature",
        "unsigned_payload",
        "checksum_algorithm",
        "request_payer",
        "server_side_encryption",
        "sse_kms_key_id",
        "sse_bucket_key_enabled",
    },
    "gs": _CLIENT | {"service_account", "application_credentials", "skip_signature"},
    "az": _CLIENT
    | {
        "account_name",
        "endpoint",
        "client_id",
        "tenant_id",
        "authority_host",
        "use_azure_cli",
        "use_emulator",
        "skip_signature",
    },
    "hdfs": frozenset[str](),
    "file": frozenset[str](),
    "memory": frozenset[str](),
}
SCHEMES = tuple(OPTIONS)
_FORMS = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, hdfs://host/path, file:///path"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
# What answers a browser: servers, not stores.
_SERVERS = ("http", "https")
_PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?)?")
# In names of objects everything else is written differently by one library or another.
_PART = re.compile(r"[A-Za-z0-9._=+@,-]+")
_SECRET = re.compile(r"key|token|secret|password|credential|sas|signature", re.IGNORECASE)


def is_address(text: str) -> bool:
    """Whether this means a store and not a path; `open_store` says what is wrong with it."""
    found = _SCHEME.match(text)
    return found is not None and found[1].lower() not in _SERVERS


@dataclass(frozen=True, slots=True)
class Address:
    """An address that is well formed; as text it is what people may see, and may be parsed again."""

    scheme: str
    # The bucket, container, host or name.
    place: str
    # Without slashes at its ends; of `file` it is absolute.
    path: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ConfigurationError, which repeats no part that may be secret."""
        scheme = _read_scheme(text)
        rest, _, query = text[len(scheme) + len("://") :].partition("?")
        place, slash, path = rest.partition("/")
        if "@" in place:
            raise ConfigurationError(
                f"an address of {scheme}:// has a name or password in it",
                hint="leave out what stands before the @, and give credentials in the environment",
            )
        scheme = scheme.lower()
        address = cls(scheme, place, _read_path(scheme, slash + path), _read_options(scheme, query))
        address._require_place()
        return address

    def __str__(self) -> str:
        path = quote(self.path) if self.scheme == "file" else f"/{self.path}" if self.path else ""
        query = urlencode(self.options, safe=":/,@")
        return f"{self.scheme}://{self.place}{path}" + (f"?{query}" if query else "")

    def option(self, name: str) -> str | None:
        return dict(self.options).get(name)

    def _require_place(self) -> None:
        if self.scheme == "file":
            is_right = self.place in ("", "localhost")
        elif self.scheme == "hdfs":
            is_right = _HOST.fullmatch(self.place) is not None
        else:
            is_right = _PLACE.fullmatch(self.place) is not None
        if not is_right:
            raise ConfigurationError(
                f"an address of {self.scheme}:// names no {_WHAT[self.scheme]}: {self.place!r}",
                hint=f"write it as in {_FORMS}",
            )


_WHAT = {
    "s3": "bucket",
    "gs": "bucket",
    "az": "container",
    "hdfs": "host",
    "file": "path (three slashes: file:///path)",
    "memory": "name",
}


def _read_scheme(text: str) -> str:
    found = _SCHEME.match(text)
    if found is None or found[1].lower() not in OPTIONS:
        what = "a path" if found is None else f"{found[1]}://"
        raise ConfigurationError(f"{what} is no address of a store", hint=f"write it as in {_FORMS}")
    if not text.isprintable():
        raise ConfigurationError(f"an address of {found[1]}:// has a line break or a control character in it")
    return found[1]


def _read_path(scheme: str, path: str) -> str:
    if scheme == "file":
        path = unquote(path)
        if not Path(path).is_absolute() or "\0" in path:
            raise ConfigurationError(
                "an address of file:// needs an absolute path", hint="write file:///path"
            )
        return str(Path(path))
    parts = [part for part in path.split("/") if part]
    for part in parts:
        if part in (".", "..") or not _PART.fullmatch(part):
            raise ConfigurationError(
                f"an address of {scheme}:// has {part!r} in its path",
                hint="names in a store are made of letters without accents, digits and . _ - = + @ ,",
            )
    return "/".join(parts)


def _read_options(scheme: str, query: str) -> tuple[tuple[str, str], ...]:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
    except ValueError:
        raise ConfigurationError(
            f"an address of {scheme}:// has options that cannot be read",
            hint="write them as ?name=value&name=value",
        ) from None
    known = OPTIONS[scheme]
    unknown = sorted(options.keys() - known)
    if secret := [name for name in unknown if _SECRET.search(name)]:
        raise ConfigurationError(
            f"an address of {scheme}:// has credentials in it: {', '.join(secret)}",
            hint="addresses are logged: give credentials in the environment (docs/remote.md says how)",
        )
    if unknown:
        raise ConfigurationError(
            f"an address of {scheme}:// has options that are not known: {', '.join(unknown)}",
            hint=f"there are {', '.join(sorted(known))}" if known else "it has none",
        )
    if "endpoint" in options:
        _require_endpoint(options["endpoint"])
    return tuple(sorted(options.items()))


def _require_endpoint(endpoint: str) -> None:
    """The library would panic."""
    try:
        parts = urlsplit(endpoint)
        is_right = (
            parts.scheme in _SERVERS and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_right = False
        parts = None
    if not is_right or parts is None or parts.query or parts.fragment:
        raise ConfigurationError("the endpoint is no URL", hint="write endpoint=https://host:port")
    if "@" in parts.netloc:
        raise ConfigurationError(
            "the endpoint has a name or password in it", hint="give credentials in the environment"
        )
