"""What waits for the store: deltas one after the other, the newest full, and a bound."""

from __future__ import annotations

import threading
from dataclasses import replace

from hotdelta.chain import Kind, Manifest
from hotdelta.remote.publish.outbox import Outbox, Unpublished
from tests.chain.manifests import delta, full
from tests.waiting import wait_until

NOW = 0.0
LATER = 60.0


def outbox(*manifests: Manifest, max_bytes: int = 100) -> Outbox:
    box = Outbox(max_bytes=max_bytes)
    box.decide(manifests)
    return box


def heavy(manifest: Manifest, size: int) -> Manifest:
    return replace(manifest, files=(replace(manifest.files[0], bytes=size),))


def test_deltas_go_in_their_order_and_each_until_it_is_published() -> None:
    first, second = delta("1.2", "1.1"), delta("1.3", "1.2")
    box = outbox(first, second)
    assert box.next(Kind.DELTA, timeout_seconds=NOW) is first
    assert box.next(Kind.DELTA, timeout_seconds=NOW) is first
    box.note_published(first)
    assert box.next(Kind.DELTA, timeout_seconds=NOW) is second
    box.note_published(second)
    assert box.next(Kind.DELTA, timeout_seconds=NOW) is None


def test_of_fulls_that_wait_the_newest_goes_and_the_one_on_its_way_gets_there() -> None:
    first, second, third = full("1.1"), full("1.5", "1.4"), full("1.9", "1.8")
    box = outbox(first)
    assert box.next(Kind.FULL, timeout_seconds=NOW) is first
    box.add([second])
    box.add([third])
    assert box.next(Kind.FULL, timeout_seconds=NOW) is first
    assert box.unpublished() == Unpublished(deltas=0, fulls=2, bytes=2)
    assert box.positions() == {(Kind.FULL, first.position), (Kind.FULL, third.position)}
    box.note_published(first)
    assert box.next(Kind.FULL, timeout_seconds=NOW) is third


def test_a_full_never_holds_a_delta_back() -> None:
    box = outbox(full("1.1"))
    box.next(Kind.FULL, timeout_seconds=NOW)
    box.add([delta("1.2", "1.1")])
    assert box.next(Kind.DELTA, timeout_seconds=NOW) is not None


def test_nothing_goes_before_it_is_known_what_the_store_has() -> None:
    old, new = delta("1.2", "1.1"), delta("2.1", "1.2")
    box = Outbox(max_bytes=100)
    box.begin([full("1.1"), old])
    box.add([new])
    assert box.next(Kind.DELTA, timeout_seconds=NOW) is None
    assert not box.wait_until_empty(NOW, lambda: False)
    assert len(box.positions()) == 3, "all of it stays until then"
    box.decide([old])
    assert box.next(Kind.DELTA, timeout_seconds=NOW) is old
    assert box.positions() == {(Kind.DELTA, old.position), (Kind.DELTA, new.position)}


def test_it_is_full_of_deltas_alone() -> None:
    box = outbox(heavy(full("1.1"), 1000), heavy(delta("1.2", "1.1"), 60))
    assert not box.is_full()
    last = heavy(delta("1.3", "1.2"), 60)
    box.add([last])
    assert box.is_full()
    first = box.next(Kind.DELTA, timeout_seconds=NOW)
    assert first is not None
    box.note_published(first)
    assert not box.is_full()


def test_who_waits_for_room_goes_on_when_there_is_some() -> None:
    first = heavy(delta("1.2", "1.1"), 100)
    box, is_through = outbox(first), threading.Event()

    def wait() -> None:
        box.wait_for_room(lambda: False)
        is_through.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not is_through.wait(0.05)
    box.note_published(box.next(Kind.DELTA, timeout_seconds=NOW) or first)
    wait_until(is_through.is_set, "nobody waits for room that is there")
    thread.join()
    box.add([first])
    box.wait_for_room(lambda: True)


def test_who_waits_until_all_is_published_is_told_whether_it_is() -> None:
    box = outbox(delta("1.2", "1.1"))
    assert not box.wait_until_empty(NOW, lambda: False)
    assert not box.wait_until_empty(LATER, lambda: True)
    found = box.next(Kind.DELTA, timeout_seconds=NOW)
    assert found is not None
    box.note_published(found)
    assert box.wait_until_empty(LATER, lambda: False)


def test_a_closed_one_gives_nothing_and_holds_nobody() -> None:
    box = outbox(heavy(delta("1.2", "1.1"), 1000))
    box.close()
    assert box.next(Kind.DELTA, timeout_seconds=LATER) is None
    box.wait_for_room(lambda: False)
