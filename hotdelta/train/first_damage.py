"""Which of the commits that lead to a position is damaged, if any: every file is hashed, several at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hotdelta.chain.manifest import Manifest
from hotdelta.chain.verification import verify
from hotdelta.errors import DamagedError

THREADS = min(4, os.cpu_count() or 1)


def first_damage(run_dir: Path, manifests: Sequence[Manifest]) -> tuple[Manifest, DamagedError] | None:
    """The first of them that is not as its manifest says, and why."""
    with ThreadPoolExecutor(THREADS, "hotdelta-verifying") as pool:
        # The files of one role of one commit each: a full has two large ones, and is not to keep a single thread busy.
        verdicts = [
            (manifest, pool.submit(verify, run_dir, manifest, roles=[role]))
            for manifest in manifests
            for role in dict.fromkeys(file.role for file in manifest.files)
        ]
        for manifest, verdict in verdicts:
            try:
                verdict.result()
            except DamagedError as error:
                pool.shutdown(cancel_futures=True)
                return manifest, error
    return None
