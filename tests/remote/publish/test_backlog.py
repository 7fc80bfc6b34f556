"""What is to be published follows from what is here, what is there, and where training goes on."""

from __future__ import annotations

import pytest

from hotdelta.chain import Kind, Manifest, Position
from hotdelta.errors import ChainError
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.publish.backlog import (
    Positions,
    backlog,
    newest_position,
    positions_in,
    require_same_history,
)
from hotdelta.remote.stores.memory import MemoryStore
from tests.chain.manifests import delta, full, node

HERE = (full("1.1"), delta("1.2", "1.1"), delta("1.3", "1.2"), full("1.3", "1.2"), delta("1.4", "1.3"))


def there(*, fulls: str = "", deltas: str = "") -> Positions:
    texts = {Kind.FULL: fulls, Kind.DELTA: deltas}
    return {kind: {Position.parse(text) for text in texts[kind].split()} for kind in Kind}


def missing(manifests: tuple[Manifest, ...], tip: str, store: Positions) -> list[str]:
    return [f"{manifest.kind} {manifest.position}" for manifest in backlog(manifests, node(tip), store)]


@pytest.mark.parametrize(
    "store, wanted",
    [
        (there(), ["full 1.3", "delta 1.4"]),
        (there(fulls="1.1"), ["delta 1.2", "full 1.3", "delta 1.3", "delta 1.4"]),
        (there(fulls="1.1", deltas="1.2"), ["full 1.3", "delta 1.3", "delta 1.4"]),
        (there(fulls="1.1", deltas="1.2 1.3 1.4"), ["full 1.3"]),
        # A full that went ahead of its deltas takes none of them away.
        (there(fulls="1.1 1.3", deltas="1.2"), ["delta 1.3", "delta 1.4"]),
        # Whatever retention took from the store does not come back.
        (there(fulls="1.3", deltas="1.4"), []),
        (there(fulls="1.1 1.3", deltas="1.2 1.3 1.4"), []),
    ],
)
def test_what_the_store_has_not_is_sent(store: Positions, wanted: list[str]) -> None:
    assert missing(HERE, "1.4", store) == wanted


def test_a_branch_that_nobody_goes_on_from_stays_here() -> None:
    forked = (*HERE, delta("2.1", "1.3"), delta("2.2", "2.1"))
    assert missing(forked, "2.2", there(fulls="1.1 1.3", deltas="1.2 1.3 1.4")) == ["delta 2.1", "delta 2.2"]
    assert missing(forked, "1.4", there(fulls="1.3", deltas="1.2 1.3")) == ["delta 1.4"]


def test_a_chain_that_begins_has_no_past() -> None:
    assert backlog(HERE, None, there()) == ()


def test_a_spool_without_its_full_sends_what_follows_that_of_the_store() -> None:
    assert missing(HERE[2:3] + HERE[4:], "1.4", there(fulls="1.1", deltas="1.2 1.3")) == ["delta 1.4"]


def test_the_newest_position_is_that_of_any_kind() -> None:
    assert newest_position(there()) is None
    assert newest_position(there(fulls="1.9 2.1", deltas="1.12")) == Position(2, 1)


def test_a_store_that_was_used_for_another_chain_is_found_out() -> None:
    log = CommitLog(MemoryStore())
    for manifest in (full("1.1"), delta(node("1.2", "b"), "1.1")):
        log.add(manifest, manifest.to_json())
    positions = positions_in(log)
    require_same_history(log, HERE[:1], positions)
    require_same_history(log, (), positions)
    require_same_history(log, (full("7.1"),), positions)
    with pytest.raises(ChainError, match=r"two histories.*1\.2"):
        require_same_history(log, HERE, positions)
