"""`hotdelta doctor s3://...`: what a store promises, and what lies in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.chain import Kind, Position
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog, Head
from hotdelta.remote.stores.opening import open_store
from tests.cli.conftest import Run
from tests.cli.test_doctor import found_in
from tests.remote.servers import READER, S3Server
from tests.remote.stored_chain import put_commits


def test_a_store_that_is_fit_passes(run: Run, s3_address: str) -> None:
    done = run("doctor", s3_address)
    assert done.code == 0
    found = found_in(run, s3_address)
    assert found["new names"] == ("ok", "the second put of a new name was refused")
    assert found["chain"][0] == "warn"
    assert [name for name, (verdict, _) in found.items() if verdict == "fail"] == []


def test_a_store_that_ignores_conditions_fails(run: Run, rclone: S3Server) -> None:
    done = run("doctor", rclone.new_address())
    assert done.code == 1
    assert "conditions are ignored" in done.out
    assert "use a store that keeps conditional puts" in done.out


def test_a_store_that_nobody_answers_for_fails(run: Run) -> None:
    found = found_in(run, "s3://bucket/run?endpoint=http://127.0.0.1:9")
    assert list(found) == ["store"]
    assert found["store"][0] == "fail"


def test_an_address_that_is_none_is_a_wrong_argument(run: Run) -> None:
    done = run("doctor", "s4://bucket/run")
    assert done.code == 2
    assert "s3://bucket/prefix" in done.err


def test_who_may_only_read_is_told_what_is_there(
    run: Run, forked: Path, s3_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(s3_address)
    put_commits(store, forked)
    CommitLog(store).tell_head(Head(full=Position(1, 1), delta=Position(2, 2)))
    for name, value in READER.items():
        monkeypatch.setenv(name, value)
    done = run("doctor", s3_address)
    assert done.code == 0
    found = found_in(run, s3_address)
    assert found["store"][0] == "warn"
    assert "nothing can be put there" in found["store"][1]
    assert found["chain"] == ("ok", "1 full, 6 deltas")
    assert found["newest"][1].startswith("the delta 2.2, ")
    assert found["hint"][0] == "ok"


def test_a_hint_that_is_behind_is_told(run: Run, forked: Path, s3_address: str) -> None:
    store = open_store(s3_address)
    put_commits(store, forked)
    CommitLog(store).tell_head(Head(full=Position(1, 1), delta=Position(1, 2)))
    assert found_in(run, s3_address)["hint"] == ("warn", "it names the delta 1.2, and the newest is 2.2")


def test_a_manifest_that_cannot_be_read_fails(run: Run, forked: Path, s3_address: str) -> None:
    store = open_store(s3_address)
    put_commits(store, forked)
    store.put(layout.log_name(Kind.DELTA, Position(2, 2)), b"{")
    assert run("doctor", s3_address).code == 1
    assert found_in(run, s3_address)["newest"][0] == "fail"
