"""TLS for every port: the certificate, its key, and who signs for the clients that are let in."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from hotdelta.errors import ConfigurationError
from server.settings import Settings

_PROTOCOLS = ("http/1.1",)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca` only clients with a certificate that it has signed are let in (mutual TLS)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> TlsFiles | None:
        """None without `--tls-cert`."""
        if settings.tls_cert is None or settings.tls_key is None:
            return None
        return cls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)

    @property
    def paths(self) -> tuple[Path, ...]:
        found = (self.certificate, self.key, self.client_ca)
        return tuple(path for path in found if path is not None)

    def context(self, protocols: tuple[str, ...] = _PROTOCOLS) -> ssl.SSLContext:
        """For clients that speak one of these.

        Raises ConfigurationError when the files cannot be read, or do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(protocols)
        self._load_certificate(context)
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise ConfigurationError(
                    f"--tls-client-ca {self.client_ca} holds no certificate: {_reason(error)}",
                    hint="give the certificate, in PEM, that the clients' certificates are signed with",
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self.certificate, self.key, password=_refuse_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigurationError(
                    f"--tls-key {self.key} is not the key of --tls-cert {self.certificate}",
                    hint="give the two that were made together",
                ) from error
            raise ConfigurationError(
                f"--tls-cert {self.certificate} and --tls-key {self.key} cannot be used: {_reason(error)}",
                hint="give a certificate (its own first, then those that lead to its CA) and its key, in PEM",
            ) from error
        except OSError as error:
            raise ConfigurationError(
                f"--tls-cert {self.certificate} or --tls-key {self.key} cannot be read: {_reason(error)}"
            ) from error
        except _EncryptedKeyError as error:
            raise ConfigurationError(
                f"--tls-key {self.key} is encrypted, and nobody is there to type its password",
                hint="decrypt it: openssl pkey -in KEY -out PLAIN, in a file that only this user can read",
            ) from error


class _EncryptedKeyError(Exception):
    """A password is asked for."""


def _refuse_password() -> bytes:
    raise _EncryptedKeyError


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is not PEM").replace("_", " ").lower()
    return str(error.strerror)
