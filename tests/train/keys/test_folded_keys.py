"""Deltas of a table whose keys come and go, folded into one: values, and what is said of keys, stay true."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain import Disk, Kind, Manifest, Scanner, directory_of
from hotdelta.chain.format import names
from hotdelta.chain.format.key_index import items_of
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.chain.store.folding import fold
from hotdelta.errors import HotdeltaError
from hotdelta.train import SeenTimes, UntouchedSteps
from tests.train.keys.keyed_training import Training, deleted_by

pytestmark = pytest.mark.I1

STEPS = 9


def keys_of(reader: StateReader) -> set[int]:
    return set(items_of(reader.value("table/index"))[0].tolist())


def read(run_dir: Path, manifest: Manifest) -> StateReader:
    state = find_state(run_dir, position=manifest.position)
    assert state is not None
    return StateReader(state)


def require_same(one: StateReader, other: StateReader) -> None:
    assert one.newest_keys() == other.newest_keys()
    for key in one.newest_keys():
        assert one.value(key).tobytes() == other.value(key).tobytes(), key
    state = names.TRAINER_STATE_TENSOR
    assert np.array_equal(one.newest_tensor(state), other.newest_tensor(state))  # type: ignore[arg-type]


def test_whatever_is_folded_values_and_figures_are_true(tmp_path: Path) -> None:
    """Every stretch of a chain in which keys wait, get a row, go, and leave it to another key or to themselves."""
    run_dir = tmp_path / "run"
    training = Training(run_dir, eviction=UntouchedSteps(1), admission=SeenTimes(2))
    for step in range(STEPS):
        training.train([step % 4, step % 4, step, step + 100, step + 100], event_time=1_000.0 + step)
        training.save()
    training.close()
    manifests = Scanner(run_dir).scan().manifests
    (full,) = (manifest for manifest in manifests if manifest.kind is Kind.FULL)
    deltas = [manifest for manifest in manifests if manifest.kind is Kind.DELTA]
    states = [read(run_dir, manifest) for manifest in (full, *deltas)]
    keys = [keys_of(state) for state in states]
    gone, made = 0, list[Manifest]()
    for first, last in itertools.combinations(range(len(deltas)), 2):
        beside = tmp_path / f"{first}-{last}"
        folded = fold(run_dir, deltas[first : last + 1], beside, disk=Disk())
        made.append(folded)
        record, come = folded.tables["table/rows"], keys[last + 1] - keys[first]
        lost = keys[first] - keys[last + 1]
        assert (record.keys_new, record.rows_deleted, record.keys_live) == (
            len(come),
            len(lost),
            len(keys[last + 1]),
        )
        assert deleted_by(beside, folded) == sorted(lost)
        assert folded.watermark == 1_000.0 + last
        gone += len(lost)
        # Beside the links before it, as a store has it.
        for path in directory_of(beside, Kind.DELTA).iterdir():
            path.rename(directory_of(run_dir, Kind.DELTA) / path.name)
        require_same(StateReader(ChainState(run_dir, full, (*deltas[:first], folded))), states[last + 1])
    assert gone > STEPS, "keys went"
    _require_readable_by_tensorflow(run_dir, made[-1])


def _require_readable_by_tensorflow(run_dir: Path, folded: Manifest) -> None:
    reader = tf.train.load_checkpoint(str(directory_of(run_dir, Kind.DELTA) / folded.prefix))
    ids, rows = reader.get_tensor("table/rows-ids"), reader.get_tensor("table/rows-rows")
    assert len(ids) == len(rows) == folded.tables["table/rows"].rows_changed


def test_without_the_state_before_them_links_stay_what_they_are(tmp_path: Path) -> None:
    """Then nobody knows which keys it had."""
    run_dir = tmp_path / "run"
    training = Training(run_dir)
    for step in range(3):
        training.train([step])
        training.save()
    training.close()
    manifests = Scanner(run_dir).scan().manifests
    deltas = [manifest for manifest in manifests if manifest.kind is Kind.DELTA]
    (run_dir / names.manifest_name(manifests[0].prefix)).unlink()
    with pytest.raises(HotdeltaError):
        fold(run_dir, deltas, tmp_path / "folded", disk=Disk())
    assert not Scanner(tmp_path / "folded").scan().manifests
