"""A model that is trained in this process, and its chain: resumes, counts training's progress, says what a cut holds.

The Keras callback and the custom-loop writer are thin layers over `ChainTrainer`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hotdelta.chain.bundle.writer import PreparedBundle
from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind, Manifest, Tracking
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Listing
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import ConfigurationError
from hotdelta.logs import event
from hotdelta.train.jobs.job import Job
from hotdelta.train.jobs.saves import JobSaves
from hotdelta.train.model.id_rules import IdRule
from hotdelta.train.model.variables import ModelVariables
from hotdelta.train.resume.loading import Resumed, describe_resumed, load_state
from hotdelta.train.resume.trainer_state import TrainerState
from hotdelta.train.rows.cut import Cut
from hotdelta.train.rows.trackers import NOTHING, Trackers
from hotdelta.train.save.chain_tip import Link
from hotdelta.train.save.engine import SaveEngine, locked
from hotdelta.train.save.full_builder import FullBuilder
from hotdelta.train.save.full_save import IN_PROGRESS_PREFIX, FullState
from hotdelta.train.save.options import WriterOptions
from hotdelta.train.save.pauses import Quiet, StepBrackets, StepWatch
from hotdelta.train.save.progress import TrainingProgress, other_model
from hotdelta.train.save.server_delta import with_rows_from_files
from hotdelta.train.save.server_probe import prove_servers_share, servers_of
from hotdelta.train.serving.files import save_schema
from hotdelta.train.tables.key_upkeep import Moment
from hotdelta.train.tables.row_values import Array
from hotdelta.train.tables.touched import AnyTouchedRows

logger = logging.getLogger(__name__)


class ChainTrainer(SaveEngine):
    """Saves a model's changes as a chain. `watch` tells of its steps, and may be replaced."""

    def __init__(
        self,
        run_dir: Path,
        *,
        options: WriterOptions,
        publish: Callable[[Path], None] = lambda _run_dir: None,
        job: Job | None = None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`publish` writes what a reader needs beside the chain (schema, serving graph); it may be called again.

        `job`: the trainers with which this one, the first, saves together.
        """
        super().__init__(run_dir, options=options, disk=disk or Disk(), clock=clock)
        self.watch: StepWatch = StepBrackets()
        self._progress = TrainingProgress()
        self.states = self._progress.registry
        self._publish = publish
        self._wall_clock = wall_clock
        self._job = JobSaves(run_dir, job, clock=clock)
        self._trackers: Trackers | None = None
        self._on_servers = NOTHING
        # Keys of variables that the loaded state does not have.
        self._begun = NOTHING
        self._has_stepped = False

    @property
    def progress(self) -> TrainerState:
        return self._progress.state

    def find_place(self) -> TrainerState:
        return self.progress

    @property
    def trackers(self) -> Trackers:
        if self._trackers is None:
            raise ConfigurationError(
                "the writer has not been started", hint="call start() before the first step"
            )
        return self._trackers

    def count_touched_rows(self) -> int:
        return self.trackers.touched_rows()

    def known_rows(self) -> int:
        return self.trackers.known_rows()

    def start(
        self,
        variables: ModelVariables,
        *,
        touched: Mapping[str, AnyTouchedRows],
        demanded: frozenset[str] = NOTHING,
        on_servers: frozenset[str] = NOTHING,
        is_resuming: bool = True,
        first_step: int = 0,
    ) -> Resumed | None:
        """Take the directory, load the newest position into the variables, and write a first full when there is none.

        `on_servers`: tables whose rows the parameter servers that hold them are to write. `first_step`: how many
        steps were made before there was anything to resume.
        Raises DirectoryBusyError, ModelMismatchError (nothing was changed), CommitError (the first full failed),
        ConfigurationError (a parameter server does not see the directory), StoreError (a new chain cannot begin
        without the store whose address was given).
        """
        listing = self.open_chain()
        self._on_servers = on_servers
        try:
            if on_servers:
                self._require_shared_directory(on_servers)
            self._job.claim()
            prove_servers_share(self._chain.run_dir, servers_of(variables, on_servers))
            self._pipeline.start()
            saved = self._find_state(listing) if is_resuming else None
            resumed = self._load(saved, variables) if saved else None
            self._chain.begin_run(listing, saved.newest if saved else None)
            if saved is None:
                event(
                    logger,
                    logging.INFO,
                    "a new chain begins",
                    directory=self._chain.run_dir,
                    run=self._chain.run,
                )
            self._bind(variables, touched=touched, demanded=demanded, unsaved=self._begun)
            self.publish()
            if saved is None:
                self._progress.state = self.progress.at_step(first_step)
                self.write_first_full()
            self._job.go_back(saved.node.position if saved else None, self.progress.trainers)
            self._job.begin(self._chain.run)
        except BaseException:
            self._chain.give_up()
            self.release()
            raise
        self._clocks.restart()
        if saved is not None:
            self._pipeline.note_saved(self.progress.step, self.progress.to_json())
        self.pauses.start()
        return resumed

    def _require_shared_directory(self, on_servers: frozenset[str]) -> None:
        if self.status.publishing is not None:
            raise ConfigurationError(
                f"parameter servers are to write the rows of {', '.join(sorted(on_servers))} into a directory that all "
                f"share, and {self.status.publishing.store} is the address of a store",
                hint='pass rows_written_by="coordinator", or a directory that the servers see',
            )

    def _find_state(self, listing: Listing) -> ChainState | None:
        otherwise = "; resume=False starts a new chain here"
        return find_state(self._chain.run_dir, listing=listing, otherwise=otherwise)

    def _load(self, saved: ChainState, variables: ModelVariables) -> Resumed:
        state, self._begun = load_state(saved, variables, on_servers=self._on_servers)
        self._progress.resume(state.at_step(saved.newest.step), saved.newest.watermark)
        # Otherwise what is served now could not be exported: deltas of its schema would follow no full of it.
        schema = variables.schema.digest
        is_other = any(item.schema != schema for item in saved.manifests)
        self.is_full_wanted = is_other or bool(self._begun)
        return describe_resumed(saved, state)

    @locked
    def rebind(
        self,
        variables: ModelVariables,
        *,
        touched: Mapping[str, AnyTouchedRows],
        demanded: frozenset[str],
    ) -> None:
        """Go on with other variables (a recompiled optimizer): the next delta has all of them, and a full follows.

        Who wrote to them since the old ones went is not known: what was recorded until now is no moment of training.
        """
        if variables.schema.digest != self.trackers.variables.schema.digest:
            raise other_model()
        self.follow_id_rules(variables.id_rules)
        self.settle_steps()
        self.finish_delta()
        self._pipeline.drop_full()
        everything = frozenset(item.key for item in variables.everything())
        self._bind(variables, touched=touched, demanded=demanded, unsaved=everything)
        self.is_full_wanted = True

    @locked
    def follow_id_rules(self, rules: Mapping[str, IdRule]) -> None:
        """Vocabularies may have got more words. Raises ConfigurationError when ids mean other rows now."""
        self._progress.follow_id_rules(rules)

    def _bind(
        self,
        variables: ModelVariables,
        *,
        touched: Mapping[str, AnyTouchedRows],
        demanded: frozenset[str],
        unsaved: frozenset[str],
    ) -> None:
        self._unbind()
        self._has_stepped = False
        self._progress.describe(variables)
        self._trackers = Trackers(
            variables,
            touched=touched,
            demanded=demanded,
            unsaved=unsaved,
            on_servers=self._on_servers,
            scrub_saves=self.options.scrub_saves,
            moment=Moment.of(self.progress.step, self._progress.watermark),
        )
        by_mode = {
            str(mode): ", ".join(key for key, tracker in self.trackers.tables.items() if tracker.mode is mode)
            for mode in Tracking
        }
        if self.trackers.tables:
            event(logger, logging.INFO, "tracking", **{mode: keys for mode, keys in by_mode.items() if keys})

    def _unbind(self) -> None:
        if self._trackers is not None:
            self._trackers.stop()
            self._trackers = None

    def publish(self) -> None:
        save_schema(directory_of(self._chain.run_dir, Kind.DELTA), self.trackers.variables.schema)
        self._publish(self._chain.run_dir)

    @locked
    def mark_all(self) -> None:
        """Everything is due: who wrote to the variables is not known."""
        self.trackers.mark_all()

    @locked
    def check_traces(self, graphs: Iterable[Any]) -> None:
        """Prove for each traced training function that every write is recorded, and recorded here."""
        self.trackers.check_recorders()
        for graph in graphs:
            self.trackers.check_trace(graph)

    def step(self, steps: int = 1) -> None:
        """Tell that training steps were made; saves when one is due. The pause is O(touched rows).

        A step costs a count and a comparison; the model is looked at when a save is due, or a step was traced.
        Raises ConfigurationError when the first step left the copies of a variable on several devices unequal.
        """
        with self.lock:
            if not self._has_stepped:
                self.trackers.check_replicas()
                self._has_stepped = True
            self._progress.add_steps(steps)
            self._job.note_step()
            if self.trackers.is_sweep_due:
                self._sweep()
            is_save_due = self.count_steps(steps)
            if self.watch.note_steps(steps) or is_save_due:
                self.watch.prove_recording()
                self.save_if_due()

    def _sweep(self) -> None:
        """Not in a pause: a step may begin at any moment of it."""
        self.trackers.sweep(step=self.progress.step, watermark=self._progress.watermark)

    @locked
    def settle_steps(self) -> None:
        """Count the steps that nobody told of."""
        self._progress.state = self.progress.with_untold(self.watch.count_untold())

    @locked
    def begin_epoch(self, epoch: int) -> None:
        """Tell which epoch begins, when that may not be the one after the last: a second fit starts again at 0."""
        self._progress.state = self.progress.in_epoch(epoch)

    @locked
    def end_epoch(self, epoch: int) -> None:
        """Tell that the `epoch`-th epoch, counted from 0, is over."""
        self._progress.state = self.progress.after_epoch(epoch)
        self._clocks.add(epochs=1)
        self.save_if_due()

    @locked
    def watermark(self, seconds: float) -> None:
        """The event time of the newest example that training has seen; it only goes forward."""
        self._progress.see(seconds)

    def quiet(self) -> Quiet | None:
        quiet = self.watch.quiet() if self._has_stepped else None
        return None if quiet is None or (quiet.untold and not self.states.is_empty) else quiet

    def why_blind(self) -> str | None:
        return (
            "the other trainers of the job are asked at a step"
            if self._job.has_others
            else self.watch.why_blind()
        )

    def is_job_ready(self) -> bool:
        is_ready = self._job.is_ready()
        self.status.missing_trainers = self._job.missing
        return is_ready

    @locked
    def save_checked(self, check: Callable[[], object]) -> None:
        """As `save`. `check`: is what is saved what was trained? When it raises, everything is saved all the same.

        So no step is lost with it.
        """
        try:
            check()
        except BaseException:
            self.trackers.mark_all()
            raise
        finally:
            self.save()

    @locked
    def finish(self, check: Callable[[], object] = lambda: None) -> Position | None:
        """Save everything up to now, a delta first; then the full that is in the making, due or wanted.

        `check` as of `save_checked`. Raises UnsavedError when what was trained is not on disk afterwards, and
        UnpublishedError when that is not in the store whose address was given. A full may be missing: deltas are
        enough.
        """
        self.save_checked(check)
        self.finish_full()
        if self._clocks.full.is_due() or self.is_full_wanted:
            self.save_full()
        self.require_saved()
        self.wait_until_published()
        return self.position

    def close(self) -> None:
        """Finish what is being written and give the directory back. Does not save: call finish() first.

        A full that has no closing cut yet is given up.
        """
        self.pauses.stop()
        try:
            self.finish_delta()
            if self._pipeline.full_state in (FullState.COPYING, FullState.COPIED):
                self._pipeline.drop_full()
            self.finish_full()
        finally:
            self.release()

    def release(self) -> None:
        super().release()
        self._unbind()

    def take_cut(self, quiet: Quiet | None) -> Cut:
        others = self._job.collect()
        self.status.missing_trainers = ()
        try:
            if quiet is not None:
                return self._cut(untold=quiet.untold)
            told = self.progress.step
            self.settle_steps()
            if self.progress.step != told:
                self._sweep()
            return self._cut(untold=0, others=others)
        finally:
            self._job.release()

    def take_closing_cut(self, quiet: Quiet | None) -> Cut:
        cut = self.take_cut(quiet)
        if self._chain.tip is None:
            self.trackers.scrub.remember(cut)
        return cut

    def _cut(self, *, untold: int, others: Mapping[str, Any] | None = None) -> Cut:
        self._progress.note_batch(self.watch.trained_batch())
        return self.trackers.cut(
            step=self.progress.step + untold,
            trainer_state=self._progress.read(others, untold=untold),
            watermark=self._progress.watermark,
            trained_at=self._wall_clock(),
        )

    def undo(self, cut: Cut) -> None:
        self.trackers.undo(cut)

    def give_back(self, cut: Cut) -> None:
        self.trackers.give_back(cut)

    def is_news(self, cut: Cut) -> bool:
        return not cut.is_empty or cut.trainer_state != self._pipeline.saved_state

    def new_full(self) -> FullBuilder:
        return FullBuilder(
            self._chain.run_dir,
            IN_PROGRESS_PREFIX,
            variables=self.trackers.variables,
            trackers=self.trackers.tables,
            on_servers=self.trackers.keys_on_servers(),
            trainer_state_bytes=len(self._progress.read()),
            disk=self._chain.disk,
        )

    def snapshot(self) -> Mapping[str, Array]:
        return self.trackers.snapshot()

    def complete(self, cut: Cut) -> Cut:
        cut, missed = self.trackers.scrub.complete(cut)
        for table, count in missed.items():
            self.status.rows_unrecorded += count
            event(logger, logging.ERROR, "rows changed that nothing recorded", table=table, rows=count)
        return cut

    def commit_delta(self, cut: Cut, link: Link) -> Manifest:
        variables, tables = self.trackers.variables, self.trackers.records(cut)
        manifest = self._chain.commit_delta(
            cut, link, others=variables.others, schema=variables.schema.digest, tables=tables
        )
        self.trackers.scrub.remember(cut)
        self.trackers.note_committed(cut)
        return manifest

    def read_back(self, cut: Cut, manifest: Manifest) -> Cut:
        if not self.trackers.keys_on_servers():
            return cut
        return with_rows_from_files(cut, directory_of(self._chain.run_dir, manifest.kind), manifest.prefix)

    def commit_full(self, prepared: PreparedBundle, cut: Cut, link: Link) -> Manifest:
        schema, tables = self.trackers.variables.schema.digest, self.trackers.records(cut)
        if link.parent is None:
            # Before it is there, for a delta may follow it at once. When it fails, no delta follows anything.
            self.trackers.note_committed(cut)
        return self._chain.commit_full(prepared, cut, link, schema=schema, tables=tables)
