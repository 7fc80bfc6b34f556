"""What a trainer goes on from lies in its spool afterwards: its own newest state, or that of the store."""

from __future__ import annotations

import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotdelta.chain import Kind, TrainerLock
from hotdelta.chain.format import names
from hotdelta.chain.history.state import find_state
from hotdelta.errors import ChainError, ConfigurationError, StoreError
from hotdelta.remote import layout
from hotdelta.remote.departures import Departures
from hotdelta.remote.publish.resuming import bring_in
from hotdelta.remote.publish.spool import SpoolOptions, to_run_directory
from hotdelta.remote.stores import opening
from hotdelta.remote.stores.memory import MemoryStore
from tests.chain.table_chain import TableChain
from tests.remote.tried_stores import AwayStore


@pytest.fixture
def address() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(address: str) -> AwayStore:
    store = AwayStore(MemoryStore(address))
    opening._in_memory[address] = store  # type: ignore[assignment]
    return store


@pytest.fixture
def chain(tmp_path: Path, store: AwayStore) -> TableChain:
    """Trained elsewhere and published: 1.1 to 1.4, with a full at 1.3."""
    chain = TableChain(tmp_path / "elsewhere")
    chain.delta([1])
    chain.close_with_full([2])
    chain.delta([3])
    with ThreadPoolExecutor(2) as pool:
        for manifest in chain.manifests:
            Departures(store, chain.run_dir, pool=pool).send(manifest)
    return chain


def spool_of(address: str, directory: Path) -> Path:
    return to_run_directory(address, SpoolOptions(directory))


def position_in(spool: Path) -> str | None:
    state = find_state(spool)
    return None if state is None else str(state.newest.position)


def test_an_empty_spool_gets_the_newest_state_from_the_newest_full_on(
    address: str, chain: TableChain, tmp_path: Path
) -> None:
    spool = spool_of(address, tmp_path / "spool")
    bring_in(spool)
    state = find_state(spool)
    assert state is not None
    assert [str(manifest.position) for manifest in state.manifests] == ["1.3", "1.4"]
    for manifest in state.manifests:
        for role in names.ROLES:
            assert (
                chain.path(manifest, role).read_bytes()
                == (spool / chain.path(manifest, role).relative_to(chain.run_dir)).read_bytes()
            )


def test_a_spool_that_is_as_far_fetches_nothing(
    address: str, store: AwayStore, chain: TableChain, tmp_path: Path
) -> None:
    spool = spool_of(address, tmp_path / "spool")
    bring_in(spool)
    store.requests.clear()
    bring_in(spool)
    assert not store.names("get_range")


def test_a_full_that_is_not_whole_there_is_gone_around(
    address: str, store: AwayStore, chain: TableChain, tmp_path: Path
) -> None:
    full = next(m for m in chain.manifests if m.kind is Kind.FULL and m.parent is not None)
    store.delete(layout.data_name(full, full.files[-1].name))
    spool = spool_of(address, tmp_path / "spool")
    bring_in(spool)
    state = find_state(spool)
    assert state is not None
    assert [str(manifest.position) for manifest in state.manifests] == ["1.1", "1.2", "1.3", "1.4"]


def test_damage_in_the_spool_is_made_good_by_the_store(
    address: str, chain: TableChain, tmp_path: Path
) -> None:
    spool = spool_of(address, tmp_path / "spool")
    bring_in(spool)
    for path in [*spool.glob("model.ckpt-*"), *spool.glob(f"{names.DELTA_DIRECTORY}/incremental*")]:
        path.unlink()
    bring_in(spool)
    assert position_in(spool) == "1.4"


def test_a_store_that_is_away_is_no_reason_to_wait_where_a_chain_is_here(
    address: str, store: AwayStore, chain: TableChain, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = spool_of(address, tmp_path / "spool")
    store.is_away = True
    with pytest.raises(StoreError, match="away"):
        bring_in(spool)
    store.is_away = False
    bring_in(spool)
    store.is_away = True
    caplog.set_level(logging.WARNING)
    bring_in(spool)
    assert any("goes on from its spool" in record.message for record in caplog.records)


def test_a_store_of_which_nothing_can_be_had_is_no_empty_one(
    address: str, store: AwayStore, chain: TableChain, tmp_path: Path
) -> None:
    for manifest in chain.manifests:
        store.delete(layout.data_name(manifest, manifest.files[0].name))
    with pytest.raises(ChainError, match="no state in memory://"):
        bring_in(spool_of(address, tmp_path / "spool"))


def test_two_histories_are_not_mixed(address: str, chain: TableChain, tmp_path: Path) -> None:
    other = TableChain(tmp_path / "spool")
    other.delta([1])
    with pytest.raises(ChainError, match="two histories"):
        bring_in(spool_of(address, other.run_dir))


def test_a_spool_whose_trainer_is_at_work_is_left_alone(
    address: str, chain: TableChain, tmp_path: Path
) -> None:
    spool = spool_of(address, tmp_path / "spool")
    with TrainerLock(spool):
        bring_in(spool)
    assert position_in(spool) is None
    bring_in(tmp_path / "no spool")
    assert not (tmp_path / "no spool").exists()


def test_the_options_of_a_spool_are_checked() -> None:
    for wrong in ({"max_bytes": 0}, {"when_full": "stop"}, {"publish_timeout_secs": -1.0}):
        with pytest.raises(ConfigurationError):
            SpoolOptions(**wrong)


def test_a_path_that_was_an_address_is_one_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTDELTA_SPOOL", str(tmp_path))
    assert to_run_directory(Path("s3://bucket/run")) == to_run_directory("s3://bucket/run")
    assert to_run_directory("s3://bucket/run").parent == tmp_path
    assert to_run_directory("s3://bucket/run") != to_run_directory("s3://bucket/other")
    assert to_run_directory(tmp_path) == tmp_path
