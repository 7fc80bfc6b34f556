"""Deltas that are folded into one lead to the very state to which they lead one by one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain import Disk, Kind, Manifest, Position, Scanner, SigningKey, delete, directory_of, verify
from hotdelta.chain.format import names
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from hotdelta.chain.history.state import find_state
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.chain.store.folding import fold, is_next
from hotdelta.errors import ChainError
from tests.chain.table_chain import BIAS, SLOT, TABLE, TableChain
from tests.chain_replay import replay
from tests.golden.golden_chains import digests, golden_chain

pytestmark = pytest.mark.I1


def lines(manifests: Sequence[Manifest]) -> Iterator[list[Manifest]]:
    """The unbroken lines of deltas of a chain, none of them in two."""
    line: list[Manifest] = []
    for manifest in manifests:
        if manifest.kind is Kind.FULL:
            continue
        if line and not is_next(line[-1], manifest):
            yield line
            line = []
        line.append(manifest)
    yield line


def fold_in_place(run_dir: Path, links: Sequence[Manifest]) -> Manifest:
    """As a store has it then: the links are gone."""
    beside = run_dir.with_name("folded")
    folded = fold(run_dir, links, beside, disk=Disk())
    verify(beside, folded)
    assert Scanner(beside).scan().manifests == (folded,)
    for link in links:
        delete(run_dir, link, Disk())
    directory = directory_of(run_dir, Kind.DELTA)
    for path in directory_of(beside, Kind.DELTA).iterdir():
        if path.name.startswith(folded.prefix):
            shutil.move(path, directory / path.name)
    shutil.rmtree(beside)
    return folded


def parts_of(manifests: Sequence[Manifest], line: Sequence[Manifest]) -> Iterator[list[Manifest]]:
    """None goes over a state that a full has, or another run begins with."""
    fulls = {manifest.position for manifest in manifests if manifest.kind is Kind.FULL}
    forks = {m.parent.position for m in manifests if m.parent and m.parent.position.run != m.position.run}
    part: list[Manifest] = []
    for link in line:
        part.append(link)
        if link.position in fulls | forks:
            yield part
            part = []
    if part:
        yield part


@pytest.mark.parametrize("name", ["forked", "keras", "keyed", "signed", "tf1", "tf1_servers", "tf2_servers"])
def test_a_folded_delta_leads_where_its_links_lead(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = golden_chain(name)
    run_dir = chain.copy_to(tmp_path)
    if chain.key_file is not None:
        monkeypatch.setenv(KEY_FILE_VARIABLE, str(chain.key_file))
    manifests = Scanner(run_dir).scan().manifests
    folded = []
    for line in lines(manifests):
        for part in parts_of(manifests, line):
            if len(part) > 1:
                folded.append(fold_in_place(run_dir, part))
    assert folded, "there was something to fold"
    left = Scanner(run_dir).scan()
    assert not left.refused
    known = [manifest for manifest in left.manifests if str(manifest.position) in chain.states]
    assert {manifest.node for manifest in known}.intersection(manifest.node for manifest in folded)
    for manifest in known:
        state = chain.states[str(manifest.position)]
        assert digests(replay(run_dir, manifest.position, state)) == state, manifest.position
        if manifest.kind is Kind.DELTA and chain.key_file is not None:
            assert SigningKey.read(chain.key_file).has_signed(manifest)


ROWS = 12
TOUCHED = st.lists(
    st.tuples(st.sets(st.integers(0, ROWS - 1)), st.integers(0, 3), st.one_of(st.none(), st.floats(0, 9))),
    min_size=2,
    max_size=6,
)


@settings(max_examples=40)
@given(deltas=TOUCHED, dtype=st.sampled_from(["float32", "bfloat16", "float64", "int8"]))
def test_whatever_is_touched_the_values_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, deltas: list[tuple[set[int], int, float | None]], dtype: str
) -> None:
    """Rows that come into use in the middle, empty deltas, a value that changes now and then; in a slot too."""
    chain = TableChain(tmp_path_factory.mktemp("run"), rows=ROWS, dtype=dtype)
    for ids, _, bias in deltas:
        chain.delta(ids, bias=bias)
    folded = fold_in_place(chain.run_dir, chain.manifests[1:])
    assert folded.node == chain.manifests[-1].node
    assert folded.parent == chain.manifests[0].node
    assert folded.tables[TABLE].rows_changed == len(set().union(*(ids for ids, _, _ in deltas)))
    state = find_state(chain.run_dir)
    assert state is not None
    assert state.node == folded.node
    reader = StateReader(state)
    for key in (TABLE, SLOT, BIAS):
        np.testing.assert_array_equal(reader.value(key), chain.values[key], strict=True)


def test_what_is_signed_is_not_folded_without_the_key(tmp_path: Path) -> None:
    run_dir = golden_chain("signed").copy_to(tmp_path)
    links = next(line for line in lines(Scanner(run_dir).scan().manifests) if len(line) > 1)
    with pytest.raises(ChainError, match="no key"):
        fold(run_dir, links, tmp_path / "folded", disk=Disk())
    assert not Scanner(tmp_path / "folded").scan().manifests


def test_a_table_of_which_nobody_knows_its_keys_is_not_folded(tmp_path: Path) -> None:
    chain = TableChain(tmp_path / "run")
    links = [chain.delta([row]) for row in (1, 2)]
    told = {TABLE: replace(links[1].tables[TABLE], keys_live=7, keys_new=1)}
    with pytest.raises(ChainError, match="where the keys"):
        fold(chain.run_dir, [links[0], replace(links[1], tables=told)], tmp_path / "folded", disk=Disk())


def test_what_has_other_tensors_is_not_folded(tmp_path: Path) -> None:
    """As when an optimizer is replaced: its slots come whole, in one delta."""
    chain = TableChain(tmp_path / "run")
    chain.delta([1])
    chain.link(
        {TABLE + names.IDS_SUFFIX: np.empty(0, np.int64), TABLE + names.ROWS_SUFFIX: chain.random_rows(0)}
    )
    with pytest.raises(ChainError, match="other tensors"):
        fold(chain.run_dir, chain.manifests[1:], tmp_path / "folded", disk=Disk())
    assert not list((tmp_path / "folded").rglob("*.index"))


def test_a_line_ends_at_another_run_schema_parent_or_table(tmp_path: Path) -> None:
    chain = TableChain(tmp_path / "run")
    one, two = chain.delta([1]), chain.delta([2])
    assert is_next(one, two)
    other = replace(two.tables[TABLE], shape=(50, 3))
    for change in (
        {"kind": Kind.FULL},
        {"parent": chain.manifests[0].node},
        {"position": Position(2, 1)},
        {"schema": "6" * 64},
        {"tables": {TABLE: other}},
    ):
        assert not is_next(one, replace(two, **change)), change
