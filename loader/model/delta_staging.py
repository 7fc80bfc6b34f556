"""What comes before the gate: a delta is read, verified and staged, its pre-image kept, and its values looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hotdelta.chain import Manifest
from loader.checks.checks import Checks
from loader.checks.sanity_statistics import Accepted
from loader.files.delta_in_memory import DeltaFiles
from loader.files.fed_update import FedUpdate
from loader.lag import Stopwatch
from loader.model.live_model import LiveModel

# Less is hashed in less time than another thread needs to begin.
_BESIDE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StagedDelta:
    """What an apply of what is staged will overwrite, and the figures to remember when it was applied."""

    preimage: FedUpdate
    accepted: Accepted


class DeltaStaging:
    """Stages deltas that have passed every check. For one thread; digests of large deltas are compared in a second."""

    def __init__(self, checks: Checks) -> None:
        self.checks = checks
        self._verifier = ThreadPoolExecutor(1, thread_name_prefix="hotdelta-verify")

    def close(self) -> None:
        self._verifier.shutdown()

    def stage(self, model: LiveModel, run_dir: Path, manifest: Manifest, watch: Stopwatch) -> StagedDelta:
        """Raises ChainError and ApplyError; then something may be staged, which must not be applied."""
        schema = model.metadata.schema
        with watch.measure("verify"):
            delta = self.checks.open_delta(run_dir, manifest, schema)
        with self._verifying(delta, watch):
            with watch.measure("stage"):
                update = delta.update(schema)
                model.stage_rows(update)
            with watch.measure("preimage"):
                preimage = model.preimage()
            with watch.measure("sanity"):
                accepted = self.checks.values.check_delta(manifest, schema, update, preimage)
        return StagedDelta(preimage, accepted)

    @contextlib.contextmanager
    def _verifying(self, delta: DeltaFiles, watch: Stopwatch) -> Iterator[None]:
        """Compares digests, those of a large delta beside the body; raises what is wrong with them before all else.

        Until both are through, nothing but memory beside the live variables was written.
        """
        if delta.manifest.serving_bytes < _BESIDE_BYTES:
            with watch.measure("verify"):
                self.checks.digests(delta)
            yield
            return
        verdict = self._verifier.submit(self.checks.digests, delta)
        try:
            yield
        finally:
            with watch.measure("verify"):
                verdict.result()
