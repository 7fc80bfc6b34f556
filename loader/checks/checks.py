"""Everything that must hold before an update touches live memory, as one value: each can be replaced in a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hotdelta.chain import Manifest, Schema
from hotdelta.chain.bundle.reader import BundleRows
from hotdelta.errors import DamagedError
from loader.checks.key_tables import require_sound_full
from loader.checks.layout import Bundle, check_layout
from loader.checks.quality import QualityProbe
from loader.checks.sanity_gate import SanityGate
from loader.files.commit_files import VerifiedFiles, verify_files
from loader.files.delta_in_memory import DeltaFiles


@dataclass(frozen=True, slots=True)
class Checks:
    """The gates: digests of the files of a full and of a delta, declared shapes, values, answers to a probe."""

    files: Callable[[Path, Manifest], VerifiedFiles] = verify_files
    digests: Callable[[DeltaFiles], None] = DeltaFiles.require_digests
    layout: Callable[[Bundle, Manifest, Schema], None] = check_layout
    values: SanityGate = field(default_factory=SanityGate)
    quality: QualityProbe | None = None

    def open_delta(self, run_dir: Path, manifest: Manifest, schema: Schema) -> DeltaFiles:
        """A delta in memory whose layout fits; its digests are still to be compared. Raises DamagedError."""
        with DeltaFiles(run_dir, manifest) as delta:
            self.layout(delta, manifest, schema)
            delta.load()
        return delta

    def open_full(self, run_dir: Path, manifest: Manifest, schema: Schema) -> VerifiedFiles:
        """A full on disk, verified; `close` it. Raises DamagedError."""
        files = self.files(run_dir, manifest)
        try:
            with BundleRows(files.prefix) as bundle:
                self.layout(bundle, manifest, schema)
                require_sound_full(bundle, manifest, schema)
        except DamagedError:
            files.close()
            raise
        return files
