"""Which schemas of a chain an export is updated from: its own, and those of whole models of which it is a part."""

from __future__ import annotations

import os
from collections.abc import Callable, Container
from pathlib import Path

from hotdelta.chain import Kind, Schema, directory_of
from hotdelta.chain.bundle.file_bytes import open_plainly
from hotdelta.chain.format import names
from hotdelta.chain.format.schema import MAX_SCHEMA_BYTES
from hotdelta.errors import ManifestError


class SchemaFit:
    """Knows the schemas that the trainers have left beside the chain. One thread at a time.

    A schema is what its digest says, and a manifest says the digest: the file itself need not be trusted.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._reasons: dict[tuple[str, str], str] = {}

    def wholes(self, schema: Schema) -> Container[str]:
        """The digests of the other schemas that have all variables of `schema`; for one plan."""
        return _Wholes(lambda digest: not self.why_not(schema, digest))

    def why_not(self, schema: Schema, digest: str) -> str:
        """Why an export of `schema` cannot be updated from the schema of a digest; empty when it can."""
        own = schema.digest
        if (own, digest) not in self._reasons:
            whole = self._read(digest)
            if whole is None:
                # It may still come, or be readable later.
                return f"{names.schema_name(digest)}, which would tell more, cannot be read"
            self._reasons[own, digest] = schema.why_not_part_of(whole)
        return self._reasons[own, digest]

    def _read(self, digest: str) -> Schema | None:
        path = directory_of(self._run_dir, Kind.DELTA) / names.schema_name(digest)
        try:
            with os.fdopen(open_plainly(path), "rb") as file:
                schema = Schema.from_json(file.read(MAX_SCHEMA_BYTES))
        except (OSError, ManifestError):
            return None
        return schema if schema.digest == digest else None


class _Wholes:
    """Looks at a schema when it is asked for and only once, so that all of a plan is made with one answer."""

    def __init__(self, is_whole: Callable[[str], bool]) -> None:
        self._is_whole = is_whole
        self._known: dict[str, bool] = {}

    def __contains__(self, digest: object) -> bool:
        if not isinstance(digest, str):
            return False
        if digest not in self._known:
            self._known[digest] = self._is_whole(digest)
        return self._known[digest]
