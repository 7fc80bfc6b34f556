"""The engine of incremental checkpointing: resumes, counts training's progress, and says what a cut holds.

The Keras callback and the custom-loop writer are thin layers over `ChainTrainer`.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind, Tracking
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.scan import Listing
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import UnsavedError
from hotdelta.logs import event
from hotdelta.train.jobs.job import Job
from hotdelta.train.jobs.saves import JobSaves
from hotdelta.train.model.id_rules import IdRule
from hotdelta.train.model.variables import ModelVariables
from hotdelta.train.resume.loading import Resumed, describe_resumed, load_state
from hotdelta.train.resume.trainer_state import TrainerState
from hotdelta.train.rows.cut import Cut
from hotdelta.train.rows.trackers import NOTHING, Trackers
from hotdelta.train.save.chain_writer import ChainWriter
from hotdelta.train.save.clock import SaveClocks
from hotdelta.train.save.options import WriterOptions, WriterStatus
from hotdelta.train.save.pauses import PAUSE_SECONDS, PauseSaver, Quiet, StepWatch, TrainedBatch
from hotdelta.train.save.pipeline import SavePipeline
from hotdelta.train.save.progress import TrainingProgress, other_model
from hotdelta.train.save.saves import Saves
from hotdelta.train.save.server_probe import prove_servers_share, servers_of
from hotdelta.train.serving.files import save_schema
from hotdelta.train.tables.touched import AnyTouchedRows

logger = logging.getLogger(__name__)


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def locked(
    method: Callable[Concatenate[ChainTrainer, Arguments], Result],
) -> Callable[Concatenate[ChainTrainer, Arguments], Result]:
    """With the lock of the trainer held, so that no other thread saves meanwhile."""

    @functools.wraps(method)
    def call(self: ChainTrainer, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with self.lock:
            return method(self, *args, **kwargs)

    return call


class Unwatched:
    """The steps of a loop that nobody watches: they are told one by one."""

    def quiet(self) -> Quiet | None:
        return None

    def why_blind(self) -> str | None:
        return "nothing tells when a step begins"

    def count_untold(self) -> int:
        return 0

    def trained_batch(self) -> TrainedBatch:
        return TrainedBatch()


class ChainTrainer:
    """Saves a model's changes as a chain.

    The training thread calls every method. While it waits for data, `hotdelta-pauses` saves what is due: `lock` is held
    by whichever of them is at it. The threads of the pipeline write. `watch` tells of steps, and may be replaced.
    """

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
        self.options, self.status = options, WriterStatus()
        self.lock = threading.RLock()
        self.watch: StepWatch = Unwatched()
        self.told_steps = 0
        self._pauses = PauseSaver(self)
        self._quiet: Quiet | None = None
        self._quiet_at_last_cut: Quiet | None = None
        self._progress = TrainingProgress()
        self.states = self._progress.registry
        self._publish = publish
        self._wall_clock = wall_clock
        self._job = JobSaves(run_dir, job, clock=clock)
        disk = disk or Disk()
        self._chain = ChainWriter(run_dir, keep_fulls=options.keep_fulls, disk=disk)
        self._pipeline = SavePipeline(
            self._chain,
            publish=publish,
            disk=disk,
            clock=clock,
            status=self.status,
            on_idle=self._pauses.look,
        )
        self._on_servers = NOTHING
        self._has_stepped = False
        self._clocks = SaveClocks(
            options, clock, count_rows=self._count_touched_rows, find_place=lambda: self.progress
        )
        self._saves = Saves(
            self._chain,
            self._pipeline,
            clocks=self._clocks,
            take_cut=self._take_cut,
            trainer_state_bytes=lambda: len(self._progress.read()),
            clock=clock,
            status=self.status,
        )

    @property
    def progress(self) -> TrainerState:
        return self._progress.state

    @property
    def trackers(self) -> Trackers:
        return self._saves.trackers

    def _count_touched_rows(self) -> int:
        return self.trackers.touched_rows()

    @property
    def position(self) -> Position | None:
        """The newest committed position."""
        return self._saves.position

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
        ConfigurationError (a parameter server does not see the directory).
        """
        listing = self._chain.open()
        self._on_servers = on_servers
        try:
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
            save_schema(directory_of(self._chain.run_dir, Kind.DELTA), variables.schema)
            self._publish(self._chain.run_dir)
            self._bind(variables, touched=touched, demanded=demanded, unsaved=NOTHING)
            if saved is None:
                self._progress.state = self.progress.at_step(first_step)
                self._saves.write_first_full()
            self._job.go_back(saved.node.position if saved else None, self.progress.trainers)
            self._job.begin(self._chain.run)
        except BaseException:
            self._release()
            raise
        self._saves.begin(self.progress.to_json())
        if saved is not None:
            self._pipeline.note_saved(self.progress.step, self.progress.to_json())
        self._pauses.start()
        return resumed

    def _find_state(self, listing: Listing) -> ChainState | None:
        otherwise = "; resume=False starts a new chain here"
        return find_state(self._chain.run_dir, listing=listing, otherwise=otherwise)

    def _load(self, saved: ChainState, variables: ModelVariables) -> Resumed:
        state = load_state(saved, variables, on_servers=self._on_servers)
        self._progress.resume(state.at_step(saved.newest.step), saved.newest.watermark)
        # Otherwise what is served now could not be exported: deltas of its schema would follow no full of it.
        schema = variables.schema.digest
        self._saves.is_full_wanted = any(item.schema != schema for item in saved.manifests)
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
        self._saves.finish_delta()
        self._pipeline.drop_full()
        everything = frozenset(item.key for item in variables.everything())
        self._bind(variables, touched=touched, demanded=demanded, unsaved=everything)
        self._saves.is_full_wanted = True

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
        self._saves.release()
        self._has_stepped = False
        self._progress.describe(variables)
        self._saves.bind(
            Trackers(
                variables,
                touched=touched,
                demanded=demanded,
                unsaved=unsaved,
                on_servers=self._on_servers,
                scrub_saves=self.options.scrub_saves,
            )
        )
        by_mode = {
            str(mode): ", ".join(key for key, tracker in self.trackers.tables.items() if tracker.mode is mode)
            for mode in Tracking
        }
        if self.trackers.tables:
            event(logger, logging.INFO, "tracking", **{mode: keys for mode, keys in by_mode.items() if keys})

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
        """Tell that training steps were made; saves when one is due. The pause is O(touched rows)."""
        if self.add_steps(steps):
            self.save_if_due()

    def add_steps(self, steps: int) -> bool:
        """Tell that training steps were made. Every step pays for this, so it counts, and compares the clocks.

        True: `save_if_due` may have something to do. Look first whether what is saved is still what is trained.
        Raises ConfigurationError when the first step left the copies of a variable on several devices unequal.
        """
        with self.lock:
            if not self._has_stepped:
                self.trackers.check_replicas()
                self._has_stepped = True
            self._progress.add_steps(steps)
            self.told_steps += 1
            self._job.note_step()
            self._clocks.add(steps=steps)
            return self._pipeline.has_news or self._clocks.may_be_due()

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

    @locked
    def save_if_due(self) -> None:
        self._saves.save_if_due(self._is_job_ready)

    @property
    def pause_seconds(self) -> float:
        return max(PAUSE_SECONDS, self.status.last_stall_seconds)

    def why_blind(self) -> str | None:
        return (
            "the other trainers of the job are asked at a step"
            if self._job.has_others
            else self.watch.why_blind()
        )

    @locked
    def seconds_to_save(self) -> float | None:
        """For whoever does not train: until something is due. None: a writing thread will end first."""
        if self._saves.is_waiting_for_writer:
            return None
        seconds = 0.0 if self._pipeline.has_news else self._clocks.seconds_to_look()
        return None if math.isinf(seconds) else seconds

    @locked
    def save_in_pause(self) -> bool:
        """What `save_if_due` does, on another thread than the one that trains. False: a step is under way."""
        quiet = self.watch.quiet() if self._has_stepped else None
        if quiet is None or (quiet.untold and not self.states.is_empty):
            return False
        if self._pipeline.has_news:
            self._quiet_at_last_cut = None  # What it had may have to be saved again.
        elif quiet.steps is not None and quiet == self._quiet_at_last_cut:
            self._clocks.delta.restart()  # Nothing was trained since.
            return True
        self._quiet = quiet
        try:
            self._saves.save_if_due(self._is_job_ready)
        finally:
            self._quiet = None
        return True

    def _is_job_ready(self) -> bool:
        is_ready = self._job.is_ready()
        self.status.missing_trainers = self._job.missing
        return is_ready

    @locked
    def save(self) -> Position | None:
        """Commit a delta, or a full when the chain was removed, with everything up to now, and wait for it.

        What cannot be committed is logged, and due again: `require_saved` raises then.
        """
        return self._saves.save()

    @locked
    def save_full(self) -> Position | None:
        """Commit a full (and its closing delta) with everything up to now, and wait for it."""
        return self._saves.save_full()

    @locked
    def finish(self, check: Callable[[], object] | None = None) -> Position | None:
        """Save everything up to now, a delta first; then the full that is in the making, due or wanted.

        `check`: is what is saved what was trained? When it raises, that is saved all the same: no step is lost with it.
        Raises UnsavedError when what was trained is not on disk afterwards. A full may be missing: deltas are enough.
        """
        if check is not None:
            try:
                check()
            except BaseException:
                self.trackers.mark_all()
                self.finish()
                raise
        position = self._saves.finish()
        self.require_saved()
        return position

    @locked
    def require_saved(self) -> None:
        """After a save. Raises UnsavedError when it failed, and says what would be lost."""
        reason = self._pipeline.unsaved_reason
        if reason is not None:
            raise UnsavedError(
                reason.message,
                steps=max(0, self.progress.step - self._pipeline.saved_step),
                rows=self.trackers.known_rows(),
                position=self.position,
                path=self._chain.run_dir,
            ) from reason

    def close(self) -> None:
        """Finish what is being written and give the directory back. Does not save: call finish() first."""
        self._pauses.stop()
        try:
            self._saves.end()
        finally:
            self._release()

    def _release(self) -> None:
        self._pauses.stop()
        self._pipeline.stop()
        self._saves.release()
        self._chain.close()

    def _take_cut(self) -> Cut | None:
        others = self._job.collect()
        self.status.missing_trainers = ()
        try:
            return self._cut_between_steps(others) if self._quiet is None else self._cut_in_pause(self._quiet)
        finally:
            self._job.release()

    def _cut_between_steps(self, others: Mapping[str, Any]) -> Cut:
        """On the training thread."""
        self.settle_steps()
        self._quiet_at_last_cut = None
        return self._cut(untold=0, others=others)

    def _cut_in_pause(self, quiet: Quiet) -> Cut | None:
        cut = self._cut(untold=quiet.untold)
        if self.watch.quiet() != quiet:
            self.trackers.undo(cut)
            return None
        self._quiet_at_last_cut = quiet
        return cut

    def _cut(self, *, untold: int, others: Mapping[str, Any] | None = None) -> Cut:
        self._progress.note_batch(self.watch.trained_batch())
        return self.trackers.cut(
            step=self.progress.step + untold,
            trainer_state=self._progress.read(others, untold=untold),
            watermark=self._progress.watermark,
            trained_at=self._wall_clock(),
        )
