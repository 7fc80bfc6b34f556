"""Signatures of manifests: who holds the key wrote them. A manifest carries the digests of all its files.

HMAC-SHA256 over the canonical bytes of the manifest (sorted, compact JSON without the signature itself).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import replace
from pathlib import Path

from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Manifest
from hotdelta.chain.history.scan import Listing, Refused
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import ChainError, ConfigurationError

KEY_FILE_VARIABLE = "HOTDELTA_SIGNING_KEY_FILE"
MIN_KEY_BYTES = 32
MAX_KEY_BYTES = 4096


class SigningKey:
    """A secret that trainers and servers share. Never printed."""

    def __init__(self, secret: bytes) -> None:
        if not MIN_KEY_BYTES <= len(secret) <= MAX_KEY_BYTES:
            raise ConfigurationError(
                f"a signing key of {len(secret)} bytes is not from {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes",
                hint="make one with: openssl rand -hex 32",
            )
        self._secret = secret

    def __repr__(self) -> str:
        return "SigningKey(...)"

    @classmethod
    def read(cls, path: Path) -> SigningKey:
        """Everything in the file but white space at its ends. Raises ConfigurationError."""
        try:
            return cls(path.read_bytes().strip())
        except OSError as error:
            raise ConfigurationError(f"the signing key {path} cannot be read: {error.strerror}") from error

    @classmethod
    def from_environment(cls) -> SigningKey | None:
        """The key of the file that the environment names, if it names one. Raises ConfigurationError."""
        path = os.environ.get(KEY_FILE_VARIABLE)
        return cls.read(Path(path)) if path else None

    def sign(self, manifest: Manifest) -> Manifest:
        return replace(manifest, signature=self._signature(manifest))

    def has_signed(self, manifest: Manifest) -> bool:
        return hmac.compare_digest(self._signature(manifest), manifest.signature)

    def sign_text(self, content: bytes, *, purpose: str) -> str:
        """The signature of something that is no manifest, and of nothing else than this `purpose`."""
        return hmac.new(self._secret, f"{purpose}\n".encode() + content, hashlib.sha256).hexdigest()

    def has_signed_text(self, content: bytes, signature: str, *, purpose: str) -> bool:
        return hmac.compare_digest(self.sign_text(content, purpose=purpose), signature)

    def distrust(self, manifest: Manifest) -> str:
        """Why a manifest must not be used; empty when the holder of this key wrote it."""
        if self.has_signed(manifest):
            return ""
        return "its signature is wrong" if manifest.signature else "it is not signed, and a key is configured"

    def _signature(self, manifest: Manifest) -> str:
        return hmac.new(self._secret, manifest.signed_bytes(), hashlib.sha256).hexdigest()


def trusted_listing(run_dir: Path, listing: Listing) -> Listing:
    """What may be gone on from: with a key in the environment, all that it did not sign is refused.

    Raises ConfigurationError when the environment names a key that cannot be read.
    """
    key = SigningKey.from_environment()
    if key is None:
        return listing
    trusted, refused = [], list(listing.refused)
    for manifest in listing.manifests:
        reason = key.distrust(manifest)
        if reason:
            path = directory_of(run_dir, manifest.kind) / names.manifest_name(manifest.prefix)
            refused.append(Refused(path, reason, manifest.position))
        else:
            trusted.append(manifest)
    return Listing(tuple(trusted), tuple(refused))


def refuse_unsigned(checkpoint: str) -> None:
    """For a checkpoint without a manifest, as stock TensorFlow writes them: with a key in the environment none is used.

    Raises ChainError, and ConfigurationError when the environment names a key that cannot be read.
    """
    if SigningKey.from_environment() is not None:
        raise ChainError(
            f"{checkpoint} has no manifest, so nobody signed it, and a key is configured",
            hint="if you trust it, restore it with the Saver of stock TensorFlow, and save it into a new directory",
        )
