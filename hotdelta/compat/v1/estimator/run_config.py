"""How an Estimator runs: where it saves, how often, and its place in a cluster (from TF_CONFIG)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from hotdelta.errors import ConfigurationError

_UNSET: Any = object()

DEFAULT_SAVE_SECONDS = 600


@dataclass(frozen=True)
class RunConfig:
    """tf.estimator.RunConfig, and how often to write a delta: in seconds, in steps, or (both None) never."""

    model_dir: str | None = None
    tf_random_seed: int | None = None
    save_summary_steps: int = 100
    save_checkpoints_steps: Any = _UNSET
    save_checkpoints_secs: Any = _UNSET
    session_config: Any = None
    keep_checkpoint_max: int = 5
    keep_checkpoint_every_n_hours: float = 10000
    log_step_count_steps: int | None = 100
    device_fn: Any = None
    save_incremental_checkpoint_secs: float | None = None
    save_incremental_checkpoint_steps: int | None = None
    _cluster: dict[str, Any] = field(default_factory=lambda: json.loads(os.environ.get("TF_CONFIG", "{}")))

    def __post_init__(self) -> None:
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

    @property
    def is_incremental(self) -> bool:
        return (
            self.save_incremental_checkpoint_secs is not None
            or self.save_incremental_checkpoint_steps is not None
        )

    @property
    def cluster_spec(self) -> Any:
        return tf.train.ClusterSpec(self._cluster.get("cluster", {}))

    @property
    def task_type(self) -> str:
        return str(self._cluster.get("task", {}).get("type", "worker"))

    @property
    def task_id(self) -> int:
        return int(self._cluster.get("task", {}).get("index", 0))

    @property
    def is_chief(self) -> bool:
        has_chief = "chief" in self._cluster.get("cluster", {})
        return self.task_type in ("chief", "master") or (not has_chief and self.task_id == 0)

    @property
    def num_ps_replicas(self) -> int:
        return len(self._cluster.get("cluster", {}).get("ps", ()))

    @property
    def num_worker_replicas(self) -> int:
        cluster = self._cluster.get("cluster", {})
        return len(cluster.get("worker", ())) + len(cluster.get("chief", ())) or 1

    @property
    def master(self) -> str:
        """The server of this task, which the program has started; empty without a cluster."""
        addresses = self._cluster.get("cluster", {}).get(self.task_type, ())
        return f"grpc://{addresses[self.task_id]}" if addresses else ""

    def replace(self, **changes: Any) -> RunConfig:
        """A copy; giving one interval for full checkpoints takes the other away."""
        if "save_checkpoints_steps" in changes:
            changes.setdefault("save_checkpoints_secs", None)
        elif "save_checkpoints_secs" in changes:
            changes.setdefault("save_checkpoints_steps", None)
        return replace(self, **changes)
