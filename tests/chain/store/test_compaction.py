"""A full that is made of deltas is the one that the trainer would have written, or there is none."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import Disk, Kind, Manifest, Position, Scanner, delete, directory_of, plan, verify
from hotdelta.chain.bundle.reader import BundleRows
from hotdelta.chain.format import names
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from hotdelta.chain.history.state import ChainState, find_state
from hotdelta.chain.history.state_index import StateIndex
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.chain.store.compaction import compact
from hotdelta.errors import ChainError, CommitError
from tests.chain.disks import CountingDisk, FailingDisk
from tests.chain.store.test_crashes import list_leftovers
from tests.chain.table_chain import BIAS, SLOT, TABLE, TableChain
from tests.golden.golden_chains import golden_chain

WRITTEN_BESIDE_DELTAS = [
    ("keyed", "2.1"),
    ("keras", "1.3"),
    ("tf1", "1.4"),
    ("tf1", "2.2"),
    ("tf1_servers", "1.3"),
    ("tf1_servers", "2.2"),
]


def compacted(run_dir: Path, position: str, disk: Disk | None = None) -> Manifest:
    listing = Scanner(run_dir).scan()
    state = find_state(run_dir, listing=listing, position=Position.parse(position))
    assert state is not None
    return compact(state, listing, disk=disk or Disk(), on_write=lambda _: None)


def full_at(run_dir: Path, position: str) -> Manifest:
    manifests = Scanner(run_dir).scan().manifests
    return next(m for m in manifests if m.kind is Kind.FULL and str(m.position) == position)


def tensors_of(run_dir: Path, manifest: Manifest) -> dict[str, object]:
    """What each tensor holds; the state of the trainer as its JSON says, because a trainer leaves room behind it."""
    found: dict[str, object] = {}
    with BundleRows(directory_of(run_dir, manifest.kind) / manifest.prefix) as bundle:
        for name, entry in bundle.entries.items():
            if name.startswith("\0"):
                continue
            value = bundle.read(name)
            is_state = name == names.TRAINER_STATE_TENSOR
            found[name] = (
                json.loads(value.tobytes()) if is_state else (entry.dtype, value.shape, value.tobytes())
            )
    return found


def roles_of(run_dir: Path, manifest: Manifest) -> dict[str, set[str]]:
    """Which files hold each tensor: a server does not read those for trainers.

    Without the trainer's state, which the Saver of a Session puts beside what is served.
    """
    index = StateIndex(ChainState(run_dir, manifest))
    places = {name: index.place(name, 0) for name in index.names_in(0)}
    return {
        name: {index.file(0, extent.shard)[1].role for extent in place.extents}
        for name, place in places.items()
        if place is not None and name != names.TRAINER_STATE_TENSOR
    }


@pytest.mark.parametrize("name, position", WRITTEN_BESIDE_DELTAS)
def test_it_holds_what_the_full_of_the_trainer_holds(tmp_path: Path, name: str, position: str) -> None:
    run_dir = golden_chain(name).copy_to(tmp_path)
    theirs = full_at(run_dir, position)
    wanted, roles = tensors_of(run_dir, theirs), roles_of(run_dir, theirs)
    delete(run_dir, theirs, Disk())

    made = compacted(run_dir, position)

    ours = full_at(run_dir, position)
    assert ours == made
    assert tensors_of(run_dir, ours) == wanted
    assert roles_of(run_dir, ours) == roles
    verify(run_dir, ours)
    for member in ("node", "parent", "base", "step", "schema", "tables", "watermark", "created_at"):
        assert getattr(ours, member) == getattr(theirs, member), member


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_growing_table_has_the_rows_that_are_in_use(tmp_path: Path, dtype: str) -> None:
    chain = TableChain(tmp_path / "run", rows=5, reserved_rows=50, dtype=dtype)
    chain.delta([1, 2], new=3, bias=1.5)
    chain.delta([0, 6], new=2)

    compacted(chain.run_dir, "1.3")

    way = plan(None, Scanner(chain.run_dir).scan().manifests)
    assert len(way.steps) == 1, "a newcomer reads the new full alone"
    state = find_state(chain.run_dir)
    assert state is not None
    reader = StateReader(state)
    for key in (TABLE, SLOT, BIAS):
        np.testing.assert_array_equal(reader.value(key), chain.values[key])


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO])
def test_failure_of_any_system_call_leaves_no_trace(tmp_path: Path, error_number: int) -> None:
    counting = CountingDisk()
    compacted(written(tmp_path / "counted"), "1.3", counting)
    assert counting.calls > 10
    for call in range(1, counting.calls + 1):
        run_dir = written(tmp_path / str(call))
        before = Scanner(run_dir).scan()
        try:
            made = compacted(run_dir, "1.3", FailingDisk(call, error_number))
        except CommitError:
            assert Scanner(run_dir).scan() == before
            assert list_leftovers(run_dir) == set()
        else:
            # What fails once it is committed is TensorFlow's own state file, which decides nothing.
            verify(run_dir, made)


def written(run_dir: Path) -> Path:
    chain = TableChain(run_dir)
    chain.delta([1, 2])
    chain.delta([3])
    return run_dir


def test_followers_go_on_by_deltas_and_do_not_notice_it(tmp_path: Path) -> None:
    chain = TableChain(tmp_path / "run")
    for ids in ([1], [2], [3]):
        chain.delta(ids)
    live = chain.manifests[1].node
    before = plan(live, Scanner(chain.run_dir).scan().manifests)
    compacted(chain.run_dir, "1.3")
    assert plan(live, Scanner(chain.run_dir).scan().manifests) == before


def test_it_steps_over_a_full_that_is_damaged(tmp_path: Path) -> None:
    chain = TableChain(tmp_path / "run")
    chain.delta([1])
    full = chain.close_with_full([2])
    chain.path(full, names.ROLE_SERVING).write_bytes(b"")
    made = compacted(chain.run_dir, "1.3")
    assert made.prefix != full.prefix
    verify(chain.run_dir, made)


def test_a_chain_whose_slots_only_a_model_can_tell_is_refused(tmp_path: Path) -> None:
    run_dir = golden_chain("slot_names").copy_to(tmp_path)
    before = Scanner(run_dir).scan()
    with pytest.raises(ChainError, match="only its model tells which"):
        compacted(run_dir, "1.3")
    assert Scanner(run_dir).scan() == before
    assert list_leftovers(run_dir) <= {path.name for path in run_dir.rglob("*") if "schema" in path.name}


def test_a_signed_chain_gets_a_signed_full_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = golden_chain("signed")
    run_dir = chain.copy_to(tmp_path)
    monkeypatch.delenv(KEY_FILE_VARIABLE, raising=False)
    with pytest.raises(ChainError, match="no key is configured"):
        compacted(run_dir, chain.newest)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(chain.key_file))
    compacted(run_dir, chain.newest)
    state = find_state(run_dir)
    assert state is not None
    assert (str(state.node), state.deltas, bool(state.full.signature)) == (chain.newest, (), True)
