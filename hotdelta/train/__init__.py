"""Incremental checkpoints for any TensorFlow training: which rows changed, when to save, writing and resuming."""

from hotdelta.train.checkpoint_config import CheckpointConfig
from hotdelta.train.job import Job
from hotdelta.train.loop import DeltaWriter
from hotdelta.train.schedule import SaveEvery
from hotdelta.train.trainer_progress import TrainerProgress
from hotdelta.train.writer_options import Resumed, WriterOptions, WriterStatus

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
