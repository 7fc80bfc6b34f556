"""Incremental checkpoints for any TensorFlow training: which rows changed, when to save, writing and resuming."""

from hotdelta.train.checkpoint_config import CheckpointConfig
from hotdelta.train.jobs.job import Job
from hotdelta.train.loop import DeltaWriter
from hotdelta.train.resume.loading import Resumed
from hotdelta.train.save.options import WriterOptions, WriterStatus
from hotdelta.train.save.schedule import SaveEvery
from hotdelta.train.trainer_progress import TrainerProgress

__all__ = [
    "CheckpointConfig",
    "DeltaWriter",
    "Job",
    "Resumed",
    "SaveEvery",
    "TrainerProgress",
    "WriterOptions",
    "WriterStatus",
]
