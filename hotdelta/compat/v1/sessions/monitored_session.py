"""`tf.train.MonitoredTrainingSession` with an interval for deltas."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.chain.save_schedule import SaveSchedule, find_schedule, refuse_chain
from hotdelta.compat.v1.chain.session_progress import ChiefProgress, ProgressHook, check_progress
from hotdelta.compat.v1.graph.cluster_tasks import awaited_servers, own_task
from hotdelta.compat.v1.recording.hooks import RecordingHook, task_hook
from hotdelta.compat.v1.sessions.reading_session import reading_scaffold
from hotdelta.compat.v1.sessions.saver_hook import (
    CheckpointSaverHook,
    require_chain_for_progress,
    require_incremental_scaffold,
)
from hotdelta.compat.v1.sessions.scaffold import Scaffold
from hotdelta.compat.v1.sessions.watched_session import make_watched
from hotdelta.errors import ConfigurationError
from hotdelta.remote.publish.resuming import bring_in
from hotdelta.remote.publish.spool import given_address
from hotdelta.train.checkpoint_config import CheckpointConfig
from hotdelta.train.save.schedule import SaveEvery
from hotdelta.train.trainer_progress import TrainerProgress

v1 = tf.compat.v1
_stock_session = v1.train.MonitoredTrainingSession

USE_DEFAULT = object()
DEFAULT_SAVE_SECONDS = 600


def MonitoredTrainingSession(  # noqa: N802 - the name of tf.train
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: str | Path | CheckpointConfig | None = None,
    scaffold: Any = None,
    hooks: Any = None,
    chief_only_hooks: Any = None,
    save_checkpoint_secs: Any = USE_DEFAULT,
    save_summaries_steps: Any = USE_DEFAULT,
    save_summaries_secs: Any = USE_DEFAULT,
    config: Any = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200,
    save_checkpoint_steps: Any = USE_DEFAULT,
    summary_dir: str | None = None,
    save_graph_def: bool = True,
    *,
    save_incremental_checkpoint_secs: float | None = None,
    save_incremental_checkpoint_steps: int | None = None,
    progress: ChiefProgress | TrainerProgress | None = None,
) -> Any:
    """tf.train.MonitoredTrainingSession. With an incremental interval, deltas are written between full checkpoints.

    A CheckpointConfig in place of the directory says both where and when to save. `progress`: of this worker, made by
    tf.train.job_progress; it is in every commit of the chief. Raises ConfigurationError when no delta could be written.
    """
    if isinstance(checkpoint_dir, Path):
        checkpoint_dir = given_address(checkpoint_dir) or str(checkpoint_dir)
    full = _full_interval(checkpoint_dir, save_checkpoint_secs, save_checkpoint_steps)
    delta = (save_incremental_checkpoint_secs, save_incremental_checkpoint_steps)
    schedule = find_schedule(checkpoint_dir or "", full=full, delta=delta)
    hooks, chief_only_hooks = list(hooks or []), list(chief_only_hooks or [])
    if progress is not None:
        require_chain_for_progress(schedule)
        check_progress(progress, is_chief=is_chief)
        if isinstance(progress, TrainerProgress):
            hooks.append(ProgressHook(progress))
    if schedule is not None:
        scaffold = scaffold or Scaffold(incremental_save_restore=True)
        _check(checkpoint_dir, scaffold, schedule)
        if is_chief:
            chief_only_hooks.append(
                CheckpointSaverHook(
                    checkpoint_dir or "",
                    save_secs=full[0],
                    save_steps=full[1],
                    scaffold=scaffold,
                    save_graph_def=save_graph_def,
                    incremental_save_secs=delta[0],
                    incremental_save_steps=delta[1],
                    progress=progress if isinstance(progress, ChiefProgress) else None,
                )
            )
        else:
            hooks.append(RecordingHook())
        checkpoint_dir, full = str(schedule.run_dir), (None, None)
    elif checkpoint_dir and is_chief and full != (None, None):
        _refuse_unused_scaffold(scaffold)
        refuse_chain(str(checkpoint_dir))
    _bring_in(checkpoint_dir, is_chief=is_chief)
    servers = awaited_servers(master, config, v1.global_variables())
    if scaffold is None and is_chief and not servers and full == (None, None):
        scaffold = reading_scaffold(str(checkpoint_dir or ""), [*hooks, *chief_only_hooks])
    is_incremental = getattr(scaffold, "incremental_save_restore", False)
    if servers:
        hooks.append(task_hook(scaffold, own_task(master), is_chief=is_chief))
    make_session = partial(
        _stock_session,
        master=master,
        is_chief=is_chief,
        checkpoint_dir=checkpoint_dir,
        # The Saver of ours says which tensor does not fit, and both shapes.
        scaffold=scaffold or Scaffold(),
        hooks=hooks,
        chief_only_hooks=chief_only_hooks,
        save_checkpoint_secs=full[0],
        save_checkpoint_steps=full[1],
        config=config,
        stop_grace_period_secs=stop_grace_period_secs,
        log_step_count_steps=log_step_count_steps,
        max_wait_secs=max_wait_secs,
        summary_dir=summary_dir,
        save_graph_def=save_graph_def,
        **_given(save_summaries_steps=save_summaries_steps, save_summaries_secs=save_summaries_secs),
    )
    return make_watched(make_session, servers if is_incremental else {})


def _bring_in(checkpoint_dir: Any, *, is_chief: bool) -> None:
    """Also for an Estimator, which gives the spool itself: its hook has the schedule."""
    if is_chief and checkpoint_dir:
        bring_in(Path(checkpoint_dir))


def _full_interval(checkpoint: Any, seconds: Any, steps: Any) -> tuple[float | None, int | None]:
    """None and 0 are no interval."""
    if seconds is USE_DEFAULT and steps is USE_DEFAULT:
        return (None if isinstance(checkpoint, CheckpointConfig) else DEFAULT_SAVE_SECONDS), None
    return (None if seconds is USE_DEFAULT else seconds or None), (
        None if steps is USE_DEFAULT else steps or None
    )


def _check(checkpoint: Any, scaffold: Any, schedule: SaveSchedule) -> None:
    if not checkpoint:
        raise ConfigurationError(
            "an incremental interval without a directory to save to", hint="pass checkpoint_dir"
        )
    require_incremental_scaffold(scaffold)
    if schedule.full == SaveEvery():
        raise ConfigurationError(
            "an incremental interval without an interval for full checkpoints: deltas need a full to follow",
            hint="pass save_checkpoint_secs or save_checkpoint_steps, too, or leave both out (every 600 seconds)",
        )


def _refuse_unused_scaffold(scaffold: Any) -> None:
    if getattr(scaffold, "incremental_save_restore", False):
        raise ConfigurationError(
            "the scaffold records for deltas, but there is no interval for them",
            hint="pass save_incremental_checkpoint_secs or save_incremental_checkpoint_steps, too",
        )


def _given(**arguments: Any) -> dict[str, Any]:
    """What the caller gave; tf.train has defaults of its own for the rest."""
    return {name: value for name, value in arguments.items() if value is not USE_DEFAULT}
