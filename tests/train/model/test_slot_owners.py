"""Tables that are named like the slots of others: every slot gets its own rows back."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

import hotdelta.io as hio
from hotdelta.chain.bundle.reader import BundleReader
from hotdelta.chain.format import names
from tests.golden.golden_chains import digests, golden_chain
from tests.train.model.tables_named_like_slots import KEYS, Tables

pytestmark = pytest.mark.I1


@pytest.fixture
def trained(tmp_path: Path) -> Tables:
    trained = Tables(tmp_path, seed=1)
    trained.train()
    trained.train()
    trained.writer.close()
    return trained


def test_every_slot_is_resumed_under_the_ids_of_its_own_table(trained: Tables, tmp_path: Path) -> None:
    resumed = Tables(tmp_path, seed=2)
    resumed.writer.close()
    assert resumed.values() == trained.values()


def test_so_it_is_when_the_delta_has_the_ids_of_tables_only(tmp_path: Path) -> None:
    """As those of earlier commits have."""
    chain = golden_chain("slot_names")
    resumed = Tables(chain.copy_to(tmp_path), seed=2)
    assert resumed.writer.resumed is not None
    assert str(resumed.writer.resumed.position) == chain.newest
    resumed.writer.close()
    assert digests(resumed.values()) == chain.states[chain.newest]


def test_what_is_no_table_any_more_has_its_slots_back_too(trained: Tables, tmp_path: Path) -> None:
    resumed = Tables(tmp_path, seed=2, tables=KEYS[1:])
    resumed.writer.close()
    assert resumed.values() == trained.values()


def test_every_slot_is_loaded_by_name_alone(trained: Tables, tmp_path: Path) -> None:
    loaded = {key: tf.Variable(tf.zeros((9, 2))) for key in trained.values()}
    hio.load_vars(loaded, tmp_path)
    assert {key: variable.numpy().tobytes() for key, variable in loaded.items()} == trained.values()


def test_only_a_slot_that_could_be_of_another_table_has_ids_of_its_own(
    trained: Tables, tmp_path: Path
) -> None:
    (index, *_) = sorted((tmp_path / names.DELTA_DIRECTORY).glob("*.index"))
    with BundleReader(index.parent, index.stem) as reader:
        with_ids = {name.removesuffix(names.IDS_SUFFIX) for name in reader.entries if name.endswith("-ids")}
    assert with_ids == {*KEYS, "slots/second/momentum/items", "slots/second/momentum/momentum/items"}
