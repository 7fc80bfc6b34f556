"""What is folded while publishing lags, and what never is; and that nobody notices but by the jump."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import Disk, Kind, Manifest, Node, Position, Scanner, directory_of
from hotdelta.chain.format import names
from hotdelta.chain.history.state import find_state
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.errors import ConfigurationError, HotdeltaError
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.copying import copy_chain, look_at
from hotdelta.remote.mirror.choice import Following
from hotdelta.remote.mirror.mirror import Mirror
from hotdelta.remote.mirror.settings import MirrorSettings
from hotdelta.remote.publish.backlog import positions_in
from hotdelta.remote.publish.folds import Folds, choose_line
from hotdelta.remote.publish.publisher import Publisher
from hotdelta.remote.publish.spool import SpoolOptions
from hotdelta.remote.states import fetch_state
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.memory import MemoryStore
from tests.chain.manifests import OTHER_SCHEMA, delta
from tests.chain.table_chain import TableChain
from tests.remote.tried_stores import AwayStore
from tests.waiting import wait_until

LINE = [delta("1.2", "1.1"), delta("1.3", "1.2"), delta("1.4", "1.3"), delta("1.5", "1.4")]
MANY = 10**9


@pytest.mark.parametrize(
    "waiting,fulls,max_bytes,expected",
    [
        pytest.param(LINE, [], MANY, "1.2 1.3 1.4 1.5", id="a line"),
        pytest.param(LINE, ["1.4"], MANY, "1.2 1.3 1.4", id="it ends where a full is"),
        pytest.param(LINE, ["1.2"], MANY, "1.2", id="and steps over none at its beginning"),
        pytest.param(LINE, ["1.1"], MANY, "1.2 1.3 1.4 1.5", id="it may begin behind one"),
        pytest.param(LINE, [], 2, "1.2 1.3", id="no more bytes than pass through memory"),
        pytest.param([LINE[0], LINE[2], LINE[3]], [], MANY, "1.2", id="what was passed over is a hole"),
        pytest.param([LINE[0], delta("1.3", "1.2", schema=OTHER_SCHEMA)], [], MANY, "1.2", id="a schema"),
        pytest.param([LINE[0], delta("2.1", "1.2"), delta("2.2", "2.1")], [], MANY, "1.2", id="a run"),
        pytest.param([], [], MANY, "", id="nothing"),
    ],
)
def test_a_line_is_what_one_delta_can_stand_for(
    waiting: Sequence[Manifest], fulls: Sequence[str], max_bytes: int, expected: str
) -> None:
    line = choose_line(waiting, {Position.parse(full) for full in fulls}, max_bytes=max_bytes)
    assert " ".join(str(manifest.position) for manifest in line) == expected


@pytest.fixture
def chain(tmp_path: Path) -> TableChain:
    return TableChain(tmp_path / "run")


@pytest.fixture
def start(chain: TableChain) -> Iterator[Callable[..., Publisher]]:
    started: list[Publisher] = []

    def start(store: Store, *, above: int | None = 3, run: int = 1, keep: int = 5) -> Publisher:
        options = SpoolOptions(publish_timeout_secs=60, fold_deltas_above=above)
        publisher = Publisher(store, chain.run_dir, options=options, keep_fulls=keep)
        publisher.claim_run(run, may_begin_alone=True)
        publisher.begin(chain.manifests, chain.manifests[-1].node)
        started.append(publisher)
        return publisher

    yield start
    for publisher in started:
        publisher.stop()


Start = Callable[..., Publisher]


def lag(
    chain: TableChain, publisher: Publisher, store: AwayStore, commits: Callable[[], Iterable[Manifest]]
) -> None:
    """The store is away while one delta is tried in vain and these pile up behind it."""
    publisher.wait()
    store.is_away = True
    before = publisher.figures.failures
    publisher.committed(chain.delta([0]))
    wait_until(lambda: publisher.figures.failures > before, "nothing was tried")
    for manifest in commits():
        publisher.committed(manifest)
    store.is_away = False
    publisher.wait()


def in_log(store: Store) -> list[str]:
    """The deltas, each as `parent>position`."""
    log = CommitLog(store)
    found = [log.read(Kind.DELTA, position)[0] for position in log.positions_after(Kind.DELTA, None)]
    return [f"{manifest.parent}>{manifest.position}" for manifest in found]


def require_state(run_dir: Path, chain: TableChain) -> None:
    state = find_state(run_dir)
    assert state is not None
    assert state.node == chain.manifests[-1].node
    reader = StateReader(state)
    for key, value in chain.values.items():
        np.testing.assert_array_equal(reader.value(key), value, strict=True)


def fetch(store: Store, run_dir: Path) -> Position | None:
    return fetch_state(store, run_dir, there=positions_in(CommitLog(store)), disk=Disk())


@pytest.mark.I1
def test_what_piled_up_is_one_delta_and_leads_to_the_same_state(
    chain: TableChain, start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = AwayStore(MemoryStore())
    publisher = start(store)
    lag(chain, publisher, store, lambda: [chain.delta([row % 40, 7], bias=float(row)) for row in range(300)])
    assert in_log(store) == ["1.1>1.2", "1.2>1.302"]
    assert publisher.figures.folded == 300
    assert publisher.figures.commits == {"full": 1, "delta": 2}
    assert publisher.figures.unpublished.deltas == 0
    assert not Scanner(chain.run_dir / ".folded").scan().manifests
    assert any("deltas=300" in record.getMessage() for record in caplog.records)
    fetch(store, tmp_path / "other")
    require_state(tmp_path / "other", chain)
    publisher.committed(chain.delta([1]))
    publisher.wait()
    assert in_log(store)[-1] == "1.302>1.303", "the next one follows it"


def test_a_mirror_goes_over_what_was_folded(chain: TableChain, start: Start, tmp_path: Path) -> None:
    """It lists, or reads by name, what has no name: also when it had the first of them."""
    store = AwayStore(MemoryStore())
    publisher = start(store)
    publisher.wait()
    node: list[Node | None] = [None]

    def one_row(row: int) -> Manifest:
        return chain.delta([row])

    mirror = Mirror(
        store.inner,
        tmp_path / "mirror",
        MirrorSettings(poll_seconds=0.01),
        follower=lambda: Following(node[0]),
        on_arrival=lambda _: None,
    )
    mirror.start()

    def is_here(manifest: Manifest) -> bool:
        here = Scanner(tmp_path / "mirror").scan().manifests
        node[0] = here[-1].node if here else None
        return node[0] == manifest.node

    try:
        wait_until(lambda: is_here(chain.manifests[0]), "the full does not come")
        for rows in (range(9), range(40)):
            lag(chain, publisher, store, lambda rows=rows: map(one_row, rows))  # type: ignore[misc]
            wait_until(lambda: is_here(chain.manifests[-1]), "it does not come")
    finally:
        mirror.stop()
    here = Scanner(tmp_path / "mirror").scan().manifests
    assert [m.kind for m in here] == [Kind.FULL, *[Kind.DELTA] * 4], "by deltas alone"
    require_served(tmp_path / "mirror", chain)


def require_served(run_dir: Path, chain: TableChain) -> None:
    state = find_state(run_dir, roles=names.SERVING_ROLES)
    assert state is not None
    np.testing.assert_array_equal(StateReader(state).value("table"), chain.values["table"], strict=True)


def test_no_state_of_a_full_is_stepped_over(chain: TableChain, start: Start, tmp_path: Path) -> None:
    """Also while the full is being written: its closing delta is committed before it."""
    store = AwayStore(MemoryStore())
    publisher = start(store)
    closed = list[Manifest]()

    def commits() -> Iterator[Manifest]:
        yield from (chain.delta([row]) for row in range(4))
        publisher.expect_full(Position(1, 7))
        full = chain.close_with_full([5])
        yield chain.manifests[-2]
        closed.append(full)
        yield from (chain.delta([row]) for row in range(6))

    lag(chain, publisher, store, commits)
    assert in_log(store) == ["1.1>1.2", "1.2>1.7", "1.7>1.13"]
    publisher.committed(closed[0])
    publisher.wait()
    fetch(store, tmp_path / "other")
    require_state(tmp_path / "other", chain)
    other = find_state(tmp_path / "other")
    assert other is not None
    assert other.full.position == Position(1, 7)


def test_what_was_folded_goes_with_the_full_before_it(
    chain: TableChain, start: Start, tmp_path: Path
) -> None:
    store = AwayStore(MemoryStore())
    publisher = start(store, keep=1)
    lag(chain, publisher, store, lambda: [chain.delta([row]) for row in range(9)])
    assert publisher.published_of(chain.manifests) == chain.manifests, "the spool may let all of it go"
    full = chain.close_with_full([1])
    for manifest in (chain.manifests[-2], full):
        publisher.committed(manifest)
    publisher.wait()
    wait_until(lambda: in_log(store) == ["1.11>1.12"], "what nobody needs stays")
    assert list(CommitLog(store).positions_after(Kind.FULL, None)) == [full.position]
    fetch(store, tmp_path / "other")
    require_state(tmp_path / "other", chain)


@pytest.mark.parametrize("above,expected", [(None, 7), (10, 7), (4, 2)])
def test_it_is_folded_above_so_many(
    chain: TableChain, start: Start, above: int | None, expected: int
) -> None:
    store = AwayStore(MemoryStore())
    publisher = start(store, above=above)
    lag(chain, publisher, store, lambda: [chain.delta([row]) for row in range(6)])
    assert len(in_log(store)) == expected


@pytest.mark.parametrize("above", [0, -1, 1.5, True, "many"])
def test_a_wrong_number_is_refused(above: object) -> None:
    with pytest.raises(ConfigurationError, match="fold_deltas_above"):
        SpoolOptions(fold_deltas_above=above)  # type: ignore[arg-type]


def test_what_cannot_be_folded_goes_one_by_one(
    chain: TableChain, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    store = AwayStore(MemoryStore())
    publisher = start(store)
    damaged = list[Manifest]()

    def commits() -> Sequence[Manifest]:
        links = [chain.delta([row]) for row in range(8)]
        damaged.append(links[4])
        chain.path(links[4], names.ROLE_SERVING).unlink()
        return links

    lag(chain, publisher, store, commits)
    assert in_log(store) == [f"1.{seq}>1.{seq + 1}" for seq in (1, 2, 3, 4, 5, 7, 8, 9)]
    assert (publisher.figures.folded, publisher.figures.passed_over) == (0, 1)
    said = [record for record in caplog.records if "cannot be folded" in record.getMessage()]
    assert len(said) == 1, "tried once"


def test_a_folded_delta_whose_files_are_damaged_makes_way_for_its_links(
    chain: TableChain, start: Start, tmp_path: Path
) -> None:
    links = [chain.delta([row]) for row in range(6)]
    folds = Folds(chain.run_dir, above=1, disk=Disk())
    folds.in_place_of(links, (), is_begun=False)
    assert folds.current is not None
    directory = directory_of(folds.directory, Kind.DELTA)
    next(directory.glob("*.data-*")).unlink()
    store = MemoryStore()
    start(store, above=None).wait()
    assert in_log(store) == [f"1.{seq}>1.{seq + 1}" for seq in range(1, 7)]


def test_one_that_is_damaged_while_it_is_sent_makes_way_too(chain: TableChain, start: Start) -> None:
    store = AwayStore(MemoryStore(), only="log/deltas/0000000001-0000000008")
    publisher = start(store)
    publisher.wait()
    store.is_away = True
    links = [chain.delta([row]) for row in range(7)]
    publisher._outbox.decide(links)
    wait_until(lambda: publisher.figures.failures, "nothing was tried")
    next(directory_of(publisher._folds.directory, Kind.DELTA).glob("*.manifest.json")).write_text("{")
    store.is_away = False
    publisher.wait()
    assert in_log(store) == [f"1.{seq}>1.{seq + 1}" for seq in range(1, 8)]
    assert (publisher.figures.folded, publisher.figures.passed_over) == (0, 0)


def test_a_choice_stands_after_a_restart_and_no_longer_than_it_may(chain: TableChain, start: Start) -> None:
    """Nothing of it is in the store: it goes on, whatever is set now. Else it is forgotten."""
    links = [chain.delta([row]) for row in range(6)]
    Folds(chain.run_dir, above=1, disk=Disk()).in_place_of(links[:4], (), is_begun=False)
    shutil.copytree(chain.run_dir / ".folded", chain.run_dir.with_name("kept"))
    store = MemoryStore()
    publisher = start(store, above=None)
    publisher.wait()
    publisher.close()
    assert in_log(store) == ["1.1>1.5", "1.5>1.6", "1.6>1.7"]
    for other_store, other in ((store, "it is there"), (MemoryStore(), "its first link is")):
        if other_store is not store:
            for manifest in (chain.manifests[0], links[0]):
                CommitLog(other_store).add(manifest, manifest.to_json())
        shutil.copytree(chain.run_dir.with_name("kept"), chain.run_dir / ".folded", dirs_exist_ok=True)
        publisher = start(other_store, above=None, run=2)
        publisher.wait()
        publisher.close()
        assert not Scanner(chain.run_dir / ".folded").scan().manifests, other
    assert in_log(other_store)[1:] == [f"1.{seq}>1.{seq + 1}" for seq in range(2, 7)]


def test_after_a_restart_the_first_goes_alone_because_it_may_have_been_sent(
    chain: TableChain, start: Start
) -> None:
    store = AwayStore(MemoryStore())
    for row in range(8):
        chain.delta([row])
    start(store, above=1).wait()
    assert in_log(store) == ["1.1>1.2", "1.2>1.9"]


def test_the_same_state_by_another_way_is_there_already(chain: TableChain, start: Start) -> None:
    """A put whose answer was lost, and a damaged disk after it: the links follow what they were folded into."""
    links = [chain.delta([row]) for row in range(3)]
    folds = Folds(chain.run_dir, above=1, disk=Disk())
    folded = folds.in_place_of(links, (), is_begun=False)
    store = MemoryStore()
    log = CommitLog(store)
    log.add(folded, folded.to_json())
    log.add(links[-1], links[-1].to_json())
    assert log.read(Kind.DELTA, folded.position)[0] == folded
    stranger = replace(links[-1], state_id="0" * 32)
    with pytest.raises(HotdeltaError, match="another delta"):
        log.add(stranger, stranger.to_json())


def test_copies_and_a_spool_that_meets_its_own_folds_stay_right(
    chain: TableChain, start: Start, tmp_path: Path
) -> None:
    store = AwayStore(MemoryStore())
    publisher = start(store)
    lag(chain, publisher, store, lambda: [chain.delta([row]) for row in range(9)])
    publisher.close()
    for target in (tmp_path / "copy", MemoryStore()):
        done = copy_chain(store.inner, look_at(store.inner), target)
        assert [str(manifest.position) for manifest in done.copied] == ["1.1", "1.2", "1.11"]
    require_state(tmp_path / "copy", chain)
    done = copy_chain(store.inner, look_at(store.inner), chain.run_dir)
    assert [str(manifest.position) for manifest in done.copied] == ["1.11"], "beside what it was folded from"
    require_state(chain.run_dir, chain)
    entries = store.inner.list_after(layout.DATA)
    assert not [entry for entry in entries if "0000000003-" in entry.name], "and no link is there"
