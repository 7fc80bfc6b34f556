"""Runs the training of an EstimatorSpec: which hooks, which scaffold, and who saves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.estimator.run_config import RunConfig
from hotdelta.compat.v1.estimator.spec import EstimatorSpec
from hotdelta.compat.v1.recording.hooks import RecordingHook
from hotdelta.compat.v1.sessions.monitored_session import MonitoredTrainingSession
from hotdelta.compat.v1.sessions.saver import Saver
from hotdelta.compat.v1.sessions.saver_hook import CheckpointSaverHook, require_incremental_scaffold
from hotdelta.compat.v1.sessions.scaffold import Scaffold
from hotdelta.errors import ConfigurationError
from hotdelta.tensorflow_internals import add_listeners, hook_directory

v1 = tf.compat.v1


def run_training(
    spec: EstimatorSpec, config: RunConfig, *, hooks: Sequence[Any], listeners: Sequence[Any]
) -> None:
    """Until a hook stops it or the input ends."""
    v1.summary.scalar("loss", spec.loss)
    scaffold = _scaffold(spec, config)
    step = v1.train.get_global_step()
    all_hooks = [
        v1.train.NanTensorHook(spec.loss),
        *hooks,
        *(spec.training_hooks or ()),
    ]
    if config.log_step_count_steps:
        logged = v1.train.LoggingTensorHook({"loss": spec.loss, "step": step}, config.log_step_count_steps)
        all_hooks.insert(0, logged)
    if not config.is_chief and scaffold.incremental_save_restore:
        all_hooks.append(RecordingHook())
    chief_hooks = list(spec.training_chief_hooks or ())
    if config.is_saving and not _saving_hooks([*all_hooks, *chief_hooks]):
        chief_hooks.append(_saver_hook(config, scaffold))
    saving_hooks = _saving_hooks([*all_hooks, *chief_hooks])
    if listeners and not saving_hooks:
        raise ConfigurationError(
            "saving_listeners would never be called: nothing is saved",
            hint="set save_checkpoints_secs or save_checkpoints_steps in RunConfig",
        )
    for hook in _listened_hooks(saving_hooks, str(config.model_dir)):
        add_listeners(hook, listeners)
    with MonitoredTrainingSession(
        master=config.master,
        is_chief=config.is_chief,
        checkpoint_dir=config.model_dir,
        scaffold=scaffold,
        hooks=all_hooks,
        chief_only_hooks=chief_hooks,
        save_checkpoint_secs=None,
        save_checkpoint_steps=None,
        save_summaries_steps=config.save_summary_steps,
        config=_session_config(config),
        log_step_count_steps=config.log_step_count_steps,
    ) as session:
        while not session.should_stop():
            session.run([spec.train_op, spec.loss])


def _session_config(config: RunConfig) -> Any:
    """In a cluster a Session waits for all tasks that it knows of; it should not know of the other workers."""
    if config.session_config is not None or not config.num_ps_replicas:
        return config.session_config
    return v1.ConfigProto(device_filters=["/job:ps", f"/job:{config.task_type}/task:{config.task_id}"])


def _scaffold(spec: EstimatorSpec, config: RunConfig) -> Any:
    scaffold = spec.scaffold
    if scaffold is None:
        # tf.train.Scaffold would make a Saver that keeps 5, whatever the configuration says.
        savers = v1.get_collection(v1.GraphKeys.SAVERS)
        saver = savers[0] if savers else _saver(config)
        return Scaffold(saver=saver, incremental_save_restore=config.is_incremental)
    if config.is_incremental:
        require_incremental_scaffold(scaffold)
    return scaffold


def _saver(config: RunConfig) -> Saver:
    return Saver(
        sharded=True,
        max_to_keep=config.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
        defer_build=True,
        save_relative_paths=True,
        incremental_save_restore=config.is_incremental,
    )


def _saver_hook(config: RunConfig, scaffold: Any) -> CheckpointSaverHook:
    return CheckpointSaverHook(
        config.checkpoint,
        save_secs=config.save_checkpoints_secs,
        save_steps=config.save_checkpoints_steps,
        scaffold=scaffold,
        incremental_save_secs=config.save_incremental_checkpoint_secs,
        incremental_save_steps=config.save_incremental_checkpoint_steps,
    )


def _saving_hooks(hooks: Sequence[Any]) -> list[Any]:
    return [hook for hook in hooks if isinstance(hook, v1.train.CheckpointSaverHook)]


def _listened_hooks(saving_hooks: Sequence[Any], model_dir: str) -> Sequence[Any]:
    """Listeners are about the checkpoints of the model; others may save copies elsewhere."""
    own = [hook for hook in saving_hooks if hook_directory(hook).resolve() == Path(model_dir).resolve()]
    return own or saving_hooks
