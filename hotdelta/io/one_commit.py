"""A save on disk: one full checkpoint that starts a chain of its own, as all of hotdelta and TensorFlow read it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hotdelta.chain.bundle.delta_tensors import SHARD_ROLES, shard_of, state_tensors
from hotdelta.chain.bundle.writer import BundleWriter, PreparedBundle, TensorLayout
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import HighestStep, Kind, Manifest
from hotdelta.chain.format.position import Node
from hotdelta.chain.history.signing import SigningKey
from hotdelta.chain.store.commit import commit
from hotdelta.io.model_state import HeldVariable
from hotdelta.io.served_part import ServedPart
from hotdelta.train.model.id_rules import SavedIdRule
from hotdelta.train.resume.trainer_state import TrainerState
from hotdelta.train.tables.row_values import Array


@dataclass(frozen=True, slots=True)
class Save:
    """What is to be committed, where in the directory, and the largest step that a name there has used."""

    prefix: str
    node: Node
    step: int
    variables: tuple[HeldVariable, ...]
    served: ServedPart
    highest_step: int
    id_rules: Mapping[str, SavedIdRule]


def commit_save(directory: Path, save: Save, disk: Disk) -> None:
    """Write and commit. The caller holds the lock of the directory. Raises CommitError; then nothing is visible."""
    prepared = _write(directory, save, disk)
    manifest, key = _manifest(save, prepared), SigningKey.from_environment()
    commit(prepared, key.sign(manifest) if key else manifest, disk=disk)


def _write(directory: Path, save: Save, disk: Disk) -> PreparedBundle:
    """One variable at a time: only one of them is in memory twice."""
    about = _about(save)
    layouts = [
        TensorLayout(held.key, held.info.dtype, held.info.shape, shard_of(save.served.role(held.key)))
        for held in save.variables
    ]
    for name, value in about.items():
        role = names.ROLE_TRAINING if name == names.TRAINER_STATE_TENSOR else names.ROLE_SERVING
        layouts.append(TensorLayout(name, value.dtype.name, value.shape, shard_of(role)))
    writer = BundleWriter(directory, save.prefix, layouts, shard_roles=SHARD_ROLES, disk=disk)
    try:
        for held in save.variables:
            writer.write(held.key, held.read())
        for name, value in about.items():
            writer.write(name, value)
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def _about(save: Save) -> Mapping[str, Array]:
    """What a save holds beside the variables: its identity, what a trainer resumes with, the classes, the id rules."""
    parameters = tuple(held.key for held in save.variables if held.info.is_parameter)
    state = TrainerState(step=save.step, parameters=parameters, id_rules=save.id_rules)
    return {
        **state_tensors(save.node, None, save.step),
        names.TRAINER_STATE_TENSOR: np.frombuffer(state.to_json(), np.uint8),
    }


def _manifest(save: Save, prepared: PreparedBundle) -> Manifest:
    return Manifest(
        kind=Kind.FULL,
        position=save.node.position,
        state_id=save.node.state_id,
        parent=None,
        base=save.node.position,
        prefix=save.prefix,
        step=save.step,
        created_at=time.time(),
        schema=save.served.schema.digest,
        tables={held.key: held.table for held in save.variables if held.table is not None},
        files=prepared.files,
        highest_step=HighestStep(full=max(save.step, save.highest_step)),
    )
