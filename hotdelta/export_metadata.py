"""`assets.extra/hotdelta.json`: what an export says of itself. Written by exporter, read before anything is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from hotdelta import signatures as contract
from hotdelta.chain import Node, Position, Schema, SignatureSpec
from hotdelta.chain.bundle.digest import digest_bytes
from hotdelta.chain.bundle.file_bytes import open_plainly
from hotdelta.errors import ApplyError, HotdeltaError

MAX_METADATA_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class ExportMetadata:
    """`node` is the state whose values the export holds; None when it was made from a model in memory.

    `files` are the digests of its other files, `lookups` the key of the table that each look-up reads, by function and
    node; older exports have neither.
    """

    model_name: str
    schema: Schema
    is_incremental: bool
    signatures: Mapping[str, SignatureSpec]
    node: Node | None
    step: int
    files: Mapping[str, str] = field(default_factory=dict)
    lookups: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        document = self._document()
        document["digest"] = digest_bytes(json.dumps(document, sort_keys=True).encode())
        return json.dumps(document, indent=1).encode() + b"\n"

    def _document(self) -> dict[str, Any]:
        return {
            "metadata_version": contract.METADATA_VERSION,
            "model_name": self.model_name,
            "save_incr_model": self.is_incremental,
            "position": str(self.node.position) if self.node else None,
            "state_id": self.node.state_id if self.node else None,
            "step": self.step if self.node else None,
            "signatures": sorted(self.signatures),
            # Beside the schema: one that a trainer wrote without knowing the serving graph has no signatures.
            "served": json.loads(Schema((), self.signatures, {}).to_json()),
            "lookups": dict(sorted(self.lookups.items())),
            "schema_digest": self.schema.digest,
            "schema": json.loads(self.schema.to_json()),
            "files": dict(self.files),
        }


def write_metadata(directory: Path, metadata: ExportMetadata) -> None:
    """With the digests of the files that are there already."""
    path = directory / contract.METADATA_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(replace(metadata, files=_digest_files(directory)).to_json())


def _digest_files(directory: Path) -> dict[str, str]:
    """Of all but the values, which TensorFlow checks itself when it reads them. Nothing checks the graph."""
    paths = (path for path in sorted(directory.rglob("*")) if path.is_file() and ".data-" not in path.name)
    return {str(path.relative_to(directory)): digest_bytes(path.read_bytes()) for path in paths}


def require_files(directory: Path, metadata: ExportMetadata) -> None:
    """Raises ApplyError when a file is not the one that was exported: a flipped bit in a graph is another model."""
    for name, digest in metadata.files.items():
        try:
            with _open(directory / name) as file:
                content = file.read()
        except OSError as error:
            raise _unusable(directory, f"{name} cannot be read: {error.strerror}") from error
        if digest_bytes(content) != digest:
            raise _unusable(directory, f"{name} does not have the digest that {contract.METADATA_FILE} says")


def read_metadata(directory: Path) -> ExportMetadata:
    """Raises ApplyError when the file is missing, malformed, or of another version."""
    path = directory / contract.METADATA_FILE
    try:
        with _open(path) as file:
            document = json.loads(file.read(MAX_METADATA_BYTES))
        version = document["metadata_version"]
        if not 1 <= version <= contract.METADATA_VERSION:
            raise _unusable(
                directory,
                f"it has metadata_version {version}, and this hotdelta reads 1 to {contract.METADATA_VERSION}",
            )
        return _read(document)
    except FileNotFoundError as error:
        raise _unusable(directory, f"it has no {contract.METADATA_FILE}") from error
    except OSError as error:
        raise _unusable(directory, f"{contract.METADATA_FILE} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unusable(directory, f"{contract.METADATA_FILE} is malformed: {error!r}") from error


def _open(path: Path) -> BinaryIO:
    """Unlike the files of a chain it may be a link."""
    return os.fdopen(open_plainly(path, may_be_link=True), "rb")


def _read(document: dict[str, Any]) -> ExportMetadata:
    digest = document.pop("digest", None)
    if digest is not None and digest != digest_bytes(json.dumps(document, sort_keys=True).encode()):
        raise ValueError("it does not have the digest that it says")
    schema = Schema.from_json(json.dumps(document["schema"]).encode())
    if schema.digest != document["schema_digest"]:
        raise ValueError("the schema does not have the digest that it says")
    position = document["position"]
    return ExportMetadata(
        model_name=str(document["model_name"]),
        schema=schema,
        is_incremental=bool(document["save_incr_model"]),
        signatures=_served(document, schema),
        node=Node(Position.parse(position), str(document["state_id"])) if position else None,
        step=int(document["step"] or 0),
        files=_files(document),
        lookups={str(lookup): str(key) for lookup, key in document.get("lookups", {}).items()},
    )


def _files(document: dict[str, Any]) -> Mapping[str, str]:
    files = {str(name): str(digest) for name, digest in document.get("files", {}).items()}
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name!r} is not a file of the export")
    return files


def _served(document: dict[str, Any], schema: Schema) -> Mapping[str, SignatureSpec]:
    """What the export can be asked; older exports say it only in their schema."""
    kept = set(document["signatures"])
    served = Schema.from_json(json.dumps(document["served"]).encode()) if "served" in document else schema
    return {name: spec for name, spec in served.signatures.items() if name in kept}


def _unusable(directory: Path, reason: str) -> HotdeltaError:
    return ApplyError(f"{directory} is no export that can be served: {reason}", hint="export it again")
