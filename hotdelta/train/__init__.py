"""Incremental checkpoints for any TensorFlow training: which rows changed, when to save, writing and resuming."""

from hotdelta.train.loop import DeltaWriter
from hotdelta.train.schedule import SaveEvery
from hotdelta.train.writer_options import Resumed, WriterOptions, WriterStatus

__all__ = ["DeltaWriter", "Resumed", "SaveEvery", "WriterOptions", "WriterStatus"]
