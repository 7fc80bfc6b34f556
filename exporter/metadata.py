"""`assets.extra/hotdelta.json`: what an export is and holds, for the loader to read before it loads anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdelta import signatures as contract
from hotdelta.chain.digest import digest_bytes
from hotdelta.chain.manifest import Manifest
from hotdelta.chain.schema import Schema, SignatureSpec


@dataclass(frozen=True, slots=True)
class ExportMetadata:
    """`exported` is the commit whose values the export holds; None when it was made from a model in memory.

    `lookups`: as exporter.variable_uses.table_lookups says them.
    """

    model_name: str
    schema: Schema
    signatures: Mapping[str, SignatureSpec]
    is_incremental: bool
    exported: Manifest | None
    lookups: Mapping[str, str]

    def to_json(self, files: Mapping[str, str]) -> bytes:
        """`files`: the digests of the other files of the export."""
        document = {**self._document(), "files": files}
        document["digest"] = digest_bytes(json.dumps(document, sort_keys=True).encode())
        return json.dumps(document, indent=1).encode() + b"\n"

    def _document(self) -> dict[str, Any]:
        exported = self.exported
        return {
            "metadata_version": contract.METADATA_VERSION,
            "model_name": self.model_name,
            "save_incr_model": self.is_incremental,
            "position": str(exported.position) if exported else None,
            "state_id": exported.state_id if exported else None,
            "step": exported.step if exported else None,
            "signatures": sorted(self.signatures),
            # Beside the schema: one that a trainer wrote without knowing the serving graph has no signatures.
            "served": json.loads(Schema((), self.signatures, {}).to_json()),
            "lookups": dict(sorted(self.lookups.items())),
            "schema_digest": self.schema.digest,
            "schema": json.loads(self.schema.to_json()),
        }


def write_metadata(directory: Path, metadata: ExportMetadata) -> None:
    path = directory / contract.METADATA_FILE
    files = _digest_files(directory)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(metadata.to_json(files))


def _digest_files(directory: Path) -> dict[str, str]:
    """Of all but the values, which TensorFlow checks itself when it reads them. Nothing checks the graph."""
    paths = (path for path in sorted(directory.rglob("*")) if path.is_file() and ".data-" not in path.name)
    return {str(path.relative_to(directory)): digest_bytes(path.read_bytes()) for path in paths}
