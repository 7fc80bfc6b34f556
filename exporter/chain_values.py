"""The state of a chain that is exported, and its values as tensors.

Only files that serving needs are read and verified; optimizer slots may be absent.
"""

from __future__ import annotations

import logging
from pathlib import Path

import tensorflow as tf

from hotdelta.chain import names
from hotdelta.chain.position import Position
from hotdelta.chain.schema import VariableSpec
from hotdelta.chain.state import ChainState, find_state
from hotdelta.chain.state_reader import Array
from hotdelta.errors import ConfigurationError
from hotdelta.logs import event

logger = logging.getLogger(__name__)


def find_exported(run_dir: Path, position: Position | None = None) -> ChainState:
    """The newest valid position that can be exported, or the given one.

    Raises ConfigurationError when there is nothing to export, ChainError when what was asked for is damaged.
    """
    # A full of an earlier schema need not have what the newest wants: after a change of schema the next full counts.
    state = find_state(run_dir, position=position, roles=names.SERVING_ROLES, has_one_schema=True)
    if state is None:
        raise _nothing_to_export(run_dir)
    for problem in state.problems:
        event(logger, logging.WARNING, "stepping back before a damaged link", reason=problem)
    return state


def _nothing_to_export(run_dir: Path) -> ConfigurationError:
    if not run_dir.is_dir():
        return ConfigurationError(
            f"{run_dir} is no directory", hint="give the directory that the trainer writes to"
        )
    reason = "no checkpoint yet"
    if any(run_dir.glob("*.index")):
        reason = "checkpoints, but none that a trainer with hotdelta has committed"
    return ConfigurationError(
        f"{run_dir} holds {reason}",
        hint="start the trainer with this checkpoint directory: it writes a full at its first step. The command "
        "exporter waits for it with --wait",
    )


def as_tensor(value: Array, spec: VariableSpec) -> tf.Tensor:
    """The same memory as a tensor: never write to it afterwards. (tf.constant copies an array twice.)"""
    tensor = tf.experimental.dlpack.from_dlpack(value.__dlpack__())
    return tensor if tensor.dtype.name == spec.dtype else tf.bitcast(tensor, spec.dtype)
