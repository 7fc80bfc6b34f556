"""Incremental checkpoints for any TensorFlow training: which rows changed, when to save, writing and resuming."""

from hotdelta.train.bookmarks import bookmarked
from hotdelta.train.checkpoint_config import CheckpointConfig
from hotdelta.train.jobs.job import Job
from hotdelta.train.keys.dynamic_table import DynamicTable
from hotdelta.train.keys.policies import (
    Chance,
    MostKeys,
    SeenTimes,
    SeenTimesInFilter,
    SmallRows,
    UntouchedSeconds,
    UntouchedSteps,
)
from hotdelta.train.loop import DeltaWriter
from hotdelta.train.resume.loading import Resumed
from hotdelta.train.save.options import WriterStatus
from hotdelta.train.trainer_progress import TrainerProgress

__all__ = [
    "Chance",
    "CheckpointConfig",
    "DeltaWriter",
    "DynamicTable",
    "Job",
    "MostKeys",
    "Resumed",
    "SeenTimes",
    "SeenTimesInFilter",
    "SmallRows",
    "TrainerProgress",
    "UntouchedSeconds",
    "UntouchedSteps",
    "WriterStatus",
    "bookmarked",
]
