"""Keras 3 training with incremental checkpoints: an embedding layer, row-wise optimizers and a callback."""

from hotdelta.keras.adagrad import Adagrad
from hotdelta.keras.adam import Adam, AdamW
from hotdelta.keras.callback import DeltaCheckpoint
from hotdelta.keras.embedding import Embedding
from hotdelta.keras.ftrl import Ftrl
from hotdelta.keras.loss_scale import LossScaleOptimizer
from hotdelta.keras.sgd import SGD

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "DeltaCheckpoint", "Embedding", "Ftrl", "LossScaleOptimizer"]
