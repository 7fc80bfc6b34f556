"""What a model function is told (the mode), and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hotdelta.errors import ConfigurationError


class ModeKeys:
    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@dataclass(frozen=True)
class EstimatorSpec:
    """The operations of a model in one mode. Raises ConfigurationError when the mode needs one that is missing."""

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Mapping[str, Any] | None = None
    export_outputs: Mapping[str, Any] | None = None
    training_chief_hooks: Sequence[Any] | None = None
    training_hooks: Sequence[Any] | None = None
    scaffold: Any = None
    evaluation_hooks: Sequence[Any] | None = None
    prediction_hooks: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        needed = {
            ModeKeys.TRAIN: ("loss", "train_op"),
            ModeKeys.EVAL: ("loss",),
            ModeKeys.PREDICT: ("predictions",),
        }
        if self.mode not in needed:
            raise ConfigurationError(f"mode {self.mode!r} is unknown", hint="use tf.estimator.ModeKeys")
        for name in needed[self.mode]:
            if getattr(self, name) is None:
                raise ConfigurationError(
                    f"an EstimatorSpec of mode {self.mode!r} has no {name}", hint=f"pass {name}"
                )

    def _replace(self, **changes: Any) -> EstimatorSpec:
        """A copy; the name is that of a namedtuple, which tf.estimator.EstimatorSpec was."""
        return replace(self, **changes)
