"""Every way to save and load takes the address of a store in place of a directory."""

from __future__ import annotations

import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.io as hio
from hotdelta.chain import Kind, Position
from hotdelta.errors import ConfigurationError, ModelMismatchError, StoreError
from hotdelta.keras import DeltaCheckpoint
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.stores import opening
from hotdelta.remote.stores.memory import MemoryStore
from hotdelta.remote.stores.opening import open_store
from tests.io.models import bits, different, every_class
from tests.keras.small_models import fit
from tests.remote.tried_stores import AwayStore


@pytest.fixture
def address() -> str:
    return f"memory://{uuid.uuid4().hex}"


def test_what_is_saved_at_an_address_is_loaded_from_there(s3_address: str) -> None:
    model = every_class()
    fit(model, 2)
    assert hio.save_persistables(model, s3_address) == Position(1, 1)
    before = bits(model)
    fit(model, 1)
    assert hio.save_persistables(model, s3_address, "weekly") == Position(2, 1)
    fit(model, 1)
    assert hio.save_params(model, s3_address) == Position(3, 1)

    assert CommitLog(open_store(s3_address)).head().full == Position(3, 1)
    other = every_class(seed=5)
    assert hio.load_persistables(other, s3_address, "1.1").position == Position(1, 1)
    assert not different(bits(other), before)
    assert hio.load_persistables(other, s3_address, filename="weekly").position == Position(2, 1)
    hio.load_params(other, s3_address)
    names = {info.key for info in hio.describe(model) if info.is_parameter}
    assert {name: bits(other)[name] for name in names} == {name: bits(model)[name] for name in names}


def test_what_waits_for_compile_outlives_what_was_fetched(address: str) -> None:
    model = every_class()
    fit(model, 2)
    hio.save_persistables(model, address)
    late = every_class(seed=3, is_compiled=False)
    assert hio.load_persistables(late, address).waiting
    late.compile(type(model.optimizer)(0.1), "mse")
    assert not different(bits(late), bits(model))


def test_two_who_save_at_once_get_a_position_each(address: str) -> None:
    model = every_class()
    with ThreadPoolExecutor(4) as pool:
        positions = list(pool.map(lambda _: hio.save_params(model, address), range(4)))
    assert len(set(positions)) == 4
    assert [p.seq for p in positions] == [1] * 4
    log = CommitLog(open_store(address))
    assert sorted(positions) == list(log.positions_after(Kind.FULL, None))


def test_a_trainers_chain_is_loaded_and_never_saved_into(address: str, tmp_path: Path) -> None:
    model = every_class()
    with DeltaCheckpoint(
        address, save_secs=None, save_incremental_secs=None, spool_dir=tmp_path / "spool"
    ) as checkpoint:
        fit(model, 2, checkpoint)
        checkpoint.save()
    loaded = every_class(seed=4)
    assert hio.load_persistables(loaded, address).problems == ()
    assert not different(bits(loaded), bits(model))
    with pytest.raises(ConfigurationError, match="holds the chain of a trainer"):
        hio.save_params(model, address)
    assert layout.claim_name(2) not in {entry.name for entry in open_store(address).list_after("")}


def test_an_inference_model_goes_to_an_address_and_comes_from_it(s3_address: str) -> None:
    model = every_class()
    ids = np.array([[1, 2, 3]])
    first = hio.save_inference_model(s3_address, ["ids"], ["score"], model)
    assert isinstance(first, str)
    expected = np.asarray(model(ids))
    fit(model, 1)
    hio.save_inference_model(s3_address, ["ids"], ["score"], model, save_incr_model=True)
    for place, wanted in ((first, expected), (s3_address, np.asarray(model(ids)))):
        loaded, feeds, fetches = hio.load_inference_model(place)
        assert (feeds, loaded.path) == (("ids",), place)
        np.testing.assert_allclose(loaded(ids=ids)[fetches[0]], wanted, rtol=1e-6)
        loaded.close()
    assert first.partition("?")[0].endswith("/1")


@pytest.mark.parametrize(
    "verb,said",
    [
        (hio.load_params, "nothing is saved in memory"),
        (lambda model, place: hio.load_params(model, place, position="1.7"), "holds no position 1.7"),
        (lambda model, place: hio.load_params(model, place, "daily"), "holds no save named 'daily'"),
        (lambda model, place: hio.load_inference_model(place), "holds no inference model"),
        (lambda model, place: hio.load_inference_model(f"{place}/3"), "holds no inference model"),
    ],
)
def test_what_is_not_there_is_said_with_the_address(address: str, verb: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        verb(every_class(), address)
    assert tempfile.gettempdir() not in str(raised.value)


def test_a_store_that_is_away_leaves_the_model_and_no_half_of_a_save(address: str) -> None:
    store = opening._in_memory[address] = AwayStore(MemoryStore(address))  # type: ignore[assignment]
    assert isinstance(store, AwayStore)
    model = every_class()
    hio.save_params(model, address)
    before = bits(model)
    store.is_away = True
    for verb in (hio.save_params, hio.load_params, hio.load_inference_model):
        arguments = (address,) if verb is hio.load_inference_model else (model, address)
        with pytest.raises(StoreError, match="away"):
            verb(*arguments)
    store.is_away = False
    assert not different(bits(model), before)
    assert [str(position) for position in CommitLog(store.inner).positions_after(Kind.FULL, None)] == ["1.1"]


def test_what_does_not_fit_or_is_damaged_changes_nothing(address: str) -> None:
    model = every_class()
    hio.save_persistables(model, address)
    other = every_class(units=2)
    before = bits(other)
    with pytest.raises(ModelMismatchError):
        hio.load_persistables(other, address)
    store = open_store(address)
    for entry in list(store.list_after(layout.DATA)):
        if ".data-" in entry.name:
            store.put(entry.name, bytes(entry.bytes))
    damaged = every_class(seed=8)
    held = bits(damaged)
    with pytest.raises(StoreError, match="is not what its record says"):
        hio.load_params(damaged, address)
    assert not different(bits(damaged), held)
    assert not different(bits(other), before)
