"""How an Estimator runs: where it saves, how often, and its place in a cluster (from TF_CONFIG)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.chain.save_schedule import (
    DEFAULT_KEEP,
    NEVER_HOURS,
    check_kept,
    given_twice,
    refuse_hours,
    to_interval,
)
from hotdelta.errors import ConfigurationError
from hotdelta.train.checkpoint_config import CheckpointConfig

_UNSET: Any = object()

DEFAULT_SAVE_SECONDS = 600
_CHIEFS = ("chief", "master")


@dataclass(frozen=True)
class RunConfig:
    """tf.estimator.RunConfig, and how often to write a delta: in seconds, in steps, or (both None) never.

    A CheckpointConfig in place of `model_dir` says both where and when to save; `model_dir` is then its directory.
    """

    model_dir: Any = None
    tf_random_seed: int | None = None
    save_summary_steps: int = 100
    save_checkpoints_steps: Any = _UNSET
    save_checkpoints_secs: Any = _UNSET
    session_config: Any = None
    keep_checkpoint_max: int | None = DEFAULT_KEEP
    keep_checkpoint_every_n_hours: float = NEVER_HOURS
    log_step_count_steps: int | None = 100
    device_fn: Any = None
    save_incremental_checkpoint_secs: float | None = None
    save_incremental_checkpoint_steps: int | None = None
    experimental_max_worker_delay_secs: float | None = None
    _checkpoint: CheckpointConfig | None = None
    _cluster: dict[str, Any] = field(default_factory=lambda: json.loads(os.environ.get("TF_CONFIG") or "{}"))

    def __post_init__(self) -> None:
        if isinstance(self.model_dir, CheckpointConfig):
            object.__setattr__(self, "_checkpoint", self.model_dir)
            object.__setattr__(self, "model_dir", str(self.model_dir.run_dir))
        if self._checkpoint is None:
            self._settle_intervals()
        else:
            self._settle_config(self._checkpoint)
        check_kept("keep_checkpoint_max", self.keep_checkpoint_max)
        if self.is_incremental:
            refuse_hours(self.keep_checkpoint_every_n_hours)

    def _settle_config(self, config: CheckpointConfig) -> None:
        intervals = (self.save_checkpoints_steps, self.save_checkpoints_secs)
        deltas = (self.save_incremental_checkpoint_secs, self.save_incremental_checkpoint_steps)
        is_kept = self.keep_checkpoint_max in (DEFAULT_KEEP, config.max_num_checkpoints)
        if any(interval not in (_UNSET, None) for interval in (*intervals, *deltas)) or not is_kept:
            raise given_twice()
        if Path(self.model_dir) != config.run_dir:
            raise ConfigurationError(
                f"model_dir is {self.model_dir}, the CheckpointConfig says {config.run_dir}",
                hint="give the directory in the CheckpointConfig only",
            )
        object.__setattr__(self, "save_checkpoints_steps", None)
        object.__setattr__(self, "save_checkpoints_secs", None)
        object.__setattr__(self, "keep_checkpoint_max", config.max_num_checkpoints)

    def _settle_intervals(self) -> None:
        steps, seconds = self.save_checkpoints_steps, self.save_checkpoints_secs
        if steps not in (_UNSET, None) and seconds not in (_UNSET, None):
            raise ConfigurationError(
                "save_checkpoints_steps and save_checkpoints_secs are both given", hint="give one of them"
            )
        if steps is _UNSET and seconds is _UNSET:
            seconds = DEFAULT_SAVE_SECONDS
        object.__setattr__(self, "save_checkpoints_steps", None if steps is _UNSET else steps)
        object.__setattr__(self, "save_checkpoints_secs", None if seconds is _UNSET else seconds)
        if self.is_incremental and self.save_checkpoints_steps is None and self.save_checkpoints_secs is None:
            raise ConfigurationError(
                "an incremental interval without an interval for full checkpoints: deltas need a full to follow",
                hint="pass save_checkpoints_secs or save_checkpoints_steps, too",
            )
        if self.is_incremental:
            to_interval(self.save_checkpoints_secs, self.save_checkpoints_steps)
            to_interval(self.save_incremental_checkpoint_secs, self.save_incremental_checkpoint_steps)

    @property
    def checkpoint(self) -> str | CheckpointConfig:
        """What a CheckpointSaverHook takes as its directory."""
        return self._checkpoint or str(self.model_dir)

    @property
    def is_saving(self) -> bool:
        intervals = (self.save_checkpoints_secs, self.save_checkpoints_steps)
        return self._checkpoint is not None or intervals != (None, None)

    @property
    def is_incremental(self) -> bool:
        return (
            self._checkpoint is not None
            or self.save_incremental_checkpoint_secs is not None
            or self.save_incremental_checkpoint_steps is not None
        )

    @property
    def cluster_spec(self) -> Any:
        return tf.train.ClusterSpec(self._cluster.get("cluster", {}))

    @property
    def training_cluster_spec(self) -> Any:
        """Without the evaluator, which has no server: a Session would wait for it for ever."""
        return tf.train.ClusterSpec(self._tasks)

    @property
    def task_type(self) -> str:
        return str(self._cluster.get("task", {}).get("type", "worker"))

    @property
    def task_id(self) -> int:
        return int(self._cluster.get("task", {}).get("index", 0))

    @property
    def is_chief(self) -> bool:
        """In a cluster without a chief the first worker is it."""
        has_chief = any(job in self._cluster.get("cluster", {}) for job in _CHIEFS)
        return self.task_type in _CHIEFS or (
            not has_chief and (self.task_type, self.task_id) == ("worker", 0)
        )

    @property
    def num_ps_replicas(self) -> int:
        return len(self._cluster.get("cluster", {}).get("ps", ()))

    @property
    def num_worker_replicas(self) -> int:
        cluster = self._cluster.get("cluster", {})
        return sum(len(cluster.get(job, ())) for job in ("worker", *_CHIEFS)) or 1

    @property
    def master(self) -> str:
        """The server of this task, which the program or train_and_evaluate has started; empty without other tasks."""
        tasks = self._tasks
        is_alone = sum(len(addresses) for addresses in tasks.values()) < 2
        addresses = tasks.get(self.task_type, ())
        return f"grpc://{addresses[self.task_id]}" if addresses and not is_alone else ""

    @property
    def _tasks(self) -> dict[str, list[str]]:
        """The addresses of those that train; an evaluator does not, and stands beside the cluster."""
        cluster = self._cluster.get("cluster", {})
        return {job: addresses for job, addresses in cluster.items() if job != "evaluator"}

    def check_task(self) -> None:
        """Raises ConfigurationError when TF_CONFIG does not say which task of what cluster this is."""
        tasks, job, index = self._tasks, self.task_type, self.task_id
        known = {**{name: len(addresses) for name, addresses in tasks.items()}, "evaluator": 1}
        if "type" not in self._cluster.get("task", {}) or not 0 <= index < known.get(job, 0):
            raise ConfigurationError(
                f"TF_CONFIG says that this is the task {self._cluster.get('task')} of {known}",
                hint='give "task": {"type": ..., "index": ...}, counted from 0; there is one evaluator at most',
            )
        if set(tasks) - {"worker", "ps", *_CHIEFS} or sum(known.get(name, 0) for name in _CHIEFS) > 1:
            raise ConfigurationError(
                f"TF_CONFIG has a cluster of {known}",
                hint="give one chief (or master), and any number of worker and ps",
            )
        if self.num_worker_replicas > 1 and not self.num_ps_replicas:
            raise ConfigurationError(
                f"TF_CONFIG has {self.num_worker_replicas} that train, and no ps to hold what they share",
                hint='add "ps" to the cluster',
            )

    def replace(self, **changes: Any) -> RunConfig:
        """A copy; giving one interval for full checkpoints takes the other away."""
        if "save_checkpoints_steps" in changes:
            changes.setdefault("save_checkpoints_secs", None)
        elif "save_checkpoints_secs" in changes:
            changes.setdefault("save_checkpoints_steps", None)
        return replace(self, **changes)
