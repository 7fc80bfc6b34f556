"""Keras 3 training with incremental checkpoints: an embedding layer, row-wise optimizers and a callback."""

from hotdelta.keras.callback import DeltaCheckpoint
from hotdelta.keras.dynamic_embedding import DynamicEmbedding
from hotdelta.keras.embedding import Embedding
from hotdelta.keras.optimizers.adagrad import Adagrad
from hotdelta.keras.optimizers.adam import Adam, AdamW
from hotdelta.keras.optimizers.ftrl import Ftrl
from hotdelta.keras.optimizers.loss_scale import LossScaleOptimizer
from hotdelta.keras.optimizers.sgd import SGD
from hotdelta.train.bookmarks import bookmarked

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "DeltaCheckpoint",
    "DynamicEmbedding",
    "Embedding",
    "Ftrl",
    "LossScaleOptimizer",
    "bookmarked",
]
