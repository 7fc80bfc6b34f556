"""How a server is reached that does not let everybody in: a token, its CA, a certificate of one's own.

A token is read from a file or the environment, never from an argument: everybody on the machine could read it in the
list of processes.
"""

from __future__ import annotations

import argparse
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from hotdelta.errors import ConfigurationError

# The names of variables, not tokens.
ADMIN_TOKEN_VARIABLE = "HOTDELTA_ADMIN_TOKEN"  # noqa: S105
READING_TOKEN_VARIABLE = "HOTDELTA_TOKEN"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Access:
    """`token` is empty when none is sent; `tls` is None where the system's own trust is meant."""

    token: str = ""
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return "Access(...)"


def access_for_reading(options: argparse.Namespace) -> Access:
    """With a token if there is one. Raises ConfigurationError."""
    return Access(_read_token(options.token_file, READING_TOKEN_VARIABLE), _tls_of(options))


def access_for_orders(options: argparse.Namespace) -> Access:
    """A line `name:token`, as the server's file has them, will do. Raises ConfigurationError, also without a token."""
    token = _read_token(options.token_file, ADMIN_TOKEN_VARIABLE, has_name=True)
    if not token:
        raise ConfigurationError(
            "there is no token", hint=f"give --token-file, or set {ADMIN_TOKEN_VARIABLE}"
        )
    return Access(token, _tls_of(options))


def _read_token(path: Path | None, variable: str, *, has_name: bool = False) -> str:
    try:
        text = path.read_text() if path is not None else os.environ.get(variable, "")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    source = path or variable
    if len(lines) > 1:
        raise ConfigurationError(f"{source} holds {len(lines)} tokens", hint="leave yours alone in it")
    token = (lines[0].rpartition(":")[2] if has_name else lines[0]) if lines else ""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(f"what {source} holds is no token", hint="copy it from the server's file")
    return token


def _tls_of(options: argparse.Namespace) -> ssl.SSLContext | None:
    ca, certificate, key = options.ca_file, options.client_cert, options.client_key
    if ca is None and certificate is None and key is None:
        return None
    if key is not None and certificate is None:
        raise ConfigurationError("--client-key is given without --client-cert", hint="give both")
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            # An encrypted key would be asked for at the terminal, in the words of OpenSSL.
            context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        named = " and ".join(str(path) for path in (ca, certificate, key) if path is not None)
        raise ConfigurationError(
            f"{named} cannot be used for TLS: {error}", hint="give PEM files, and a key that is not encrypted"
        ) from error
    return context
