"""What comes before the gate: a delta is read, verified and staged, its pre-image kept, and its values looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hotdelta.chain import Manifest, Schema
from hotdelta.errors import ApplyError, ChainError, DamagedError
from loader.checks.checks import Checks
from loader.checks.key_tables import InUse, Moves, changes_of_keys, in_use_before, require_sound_delta
from loader.checks.sanity_statistics import Accepted
from loader.files.delta_in_memory import DeltaFiles
from loader.files.fed_update import FedUpdate
from loader.lag import Stopwatch
from loader.model.delta_folding import FoldedDeltas, is_plain
from loader.model.live_model import LiveModel

# Less is hashed in less time than another thread needs to begin.
_BESIDE_BYTES = 4 * 1024 * 1024
# Deltas are folded for what each of them costs beside its rows. A large one costs its rows.
_SMALL_BYTES = 256 * 1024
_FOLD_BYTES = 8 * 1024 * 1024
_FOLD_DELTAS = 2048


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
                (in_use,) = in_use_before(schema, [update], preimage)
                moves = changes_of_keys(schema, update, preimage, in_use)
                require_sound_delta(run_dir, manifest, schema, update, in_use, moves)
                accepted = self.checks.values.check_delta(manifest, schema, update, preimage)
        return StagedDelta(preimage, accepted)

    def stage_together(
        self, model: LiveModel, run_dir: Path, manifests: Iterable[Manifest]
    ) -> list[tuple[Manifest, Accepted]]:
        """Stages the first few of some deltas as one update, for a model that serves nobody: those, and their figures.

        Each is verified and judged as `stage` does it. None of them when there is nothing to gain, or something is
        wrong with the first: then `stage` says what. Raises ApplyError; then something may be staged, which must not
        be applied.
        """
        schema = model.metadata.schema
        read = self._read_together(model, run_dir, manifests)
        chosen, updates = [manifest for manifest, _ in read], [update for _, update in read]
        if len(chosen) < 2:
            return []
        folded = FoldedDeltas(chosen, updates, schema)
        model.stage_rows(folded.update)
        preimage = model.preimage()
        in_use = in_use_before(schema, updates, preimage)
        moves = folded.moves(preimage, in_use)
        accepted = self.checks.values.check_deltas(chosen, schema, folded.stacked(preimage, in_use, moves))
        good = min(len(accepted), _count_sound(run_dir, read, schema, in_use, moves))
        if good < len(chosen):
            model.discard()
            if good:
                model.stage_rows(FoldedDeltas(chosen[:good], updates[:good], schema).update)
        return list(zip(chosen[:good], accepted[:good], strict=True))

    def _read_together(
        self, model: LiveModel, run_dir: Path, manifests: Iterable[Manifest]
    ) -> list[tuple[Manifest, FedUpdate]]:
        """Verified, up to the first one that is large or anything is wrong with."""
        schema, node = model.metadata.schema, model.node
        found: list[tuple[Manifest, FedUpdate]] = []
        size = 0
        for manifest in manifests:
            size += manifest.serving_bytes
            is_small = manifest.serving_bytes < _SMALL_BYTES and size < _FOLD_BYTES
            if not is_small or manifest.parent != node or len(found) == _FOLD_DELTAS:
                break
            try:
                delta = self.checks.open_delta(run_dir, manifest, schema)
                self.checks.digests(delta)
                update = delta.update(schema)
            except (ChainError, ApplyError):
                # It is taken alone when its turn comes, and what is wrong with it is reported then.
                break
            if not is_plain(update, manifest, schema):
                break
            found.append((manifest, update))
            node = manifest.node
        return found

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


def _count_sound(
    run_dir: Path,
    read: Sequence[tuple[Manifest, FedUpdate]],
    schema: Schema,
    in_use: Sequence[InUse],
    moves: Sequence[Moves],
) -> int:
    """How many deltas come before the first whose keys lead nowhere: that is taken alone, and says so."""
    for done, ((manifest, update), before, moved) in enumerate(zip(read, in_use, moves, strict=True)):
        try:
            require_sound_delta(run_dir, manifest, schema, update, before, moved)
        except DamagedError:
            return done
    return len(read)
