"""Everything that must hold before an update touches live memory, as one value: each can be replaced in a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hotdelta.chain import Manifest, Schema
from loader.commit_files import VerifiedFiles, verify_files
from loader.layout_check import check_layout
from loader.sanity_gate import SanityGate


@dataclass(frozen=True, slots=True)
class Checks:
    """The gates, in their order: digests of the files, declared shapes, values."""

    files: Callable[[Path, Manifest], VerifiedFiles] = verify_files
    layout: Callable[[Path, Manifest, Schema], None] = check_layout
    values: SanityGate = field(default_factory=SanityGate)
