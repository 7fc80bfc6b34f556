"""Certificates for tests of TLS, made by openssl: for a server at 127.0.0.1, for a client, and for a stranger."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
_NAME = "subjectAltName=DNS:localhost,IP:127.0.0.1"


@dataclass(frozen=True, slots=True)
class Pair:
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """`ca` has signed `server` and `client`; `stranger` has signed itself."""

    ca: Pair
    server: Pair
    client: Pair
    stranger: Pair

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        ca, stranger = (_make(directory, name) for name in ("ca", "stranger"))
        return cls(ca, signed(directory, "server", ca), signed(directory, "client", ca), stranger)


def signed(directory: Path, name: str, ca: Pair) -> Pair:
    return _make(directory, name, "-CA", str(ca.certificate), "-CAkey", str(ca.key))


def _make(directory: Path, name: str, *options: str) -> Pair:
    made = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    command = [
        "openssl",
        "req",
        "-x509",
        *_KEY,
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
        "-addext",
        _NAME,
        *options,
    ]
    if options:
        command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    command += ["-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return made


def encrypt_key(pair: Pair, target: Path) -> Path:
    command = [
        "openssl",
        "pkey",
        "-aes256",
        "-passout",
        "pass:secret",
        "-in",
        str(pair.key),
        "-out",
        str(target),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return target
