"""`hotdelta log`, `show`, `chain`, `verify`, `diff` and `key` say of a store what they say of the directory in it."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest

from hotdelta.chain import Disk, Kind, Position, Scanner
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from hotdelta.chain.store.folding import fold
from hotdelta.remote import layout
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.publish.backlog import positions_in
from hotdelta.remote.publish.spool import MARKER
from hotdelta.remote.states import fetch_state
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from tests.chain.key_table_chain import ROWS, KeyTableChain
from tests.chain.table_chain import SLOT, TABLE, TableChain
from tests.chain_replay import replay
from tests.cli.conftest import Run
from tests.golden.golden_chains import digests, golden_chain
from tests.remote.stored_chain import put_commits


@pytest.fixture
def published(forked: Path, s3_address: str) -> Store:
    store = open_store(s3_address)
    put_commits(store, forked)
    return store


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def without_ages(text: str) -> str:
    return re.sub(r"\d+ (s|min|h|d)\b", "AGE", text)


@pytest.mark.parametrize(
    "arguments",
    [
        ("log",),
        ("chain",),
        ("show",),
        ("show", "1.3"),
        ("verify",),
        ("diff", "1.2", "2.2"),
        ("diff", "1.5", "2.1", "--all"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("has_schema", [True, False])
def test_a_store_is_told_as_its_directory(
    run: Run, forked: Path, published: Store, temporary: Path, arguments: tuple[str, ...], has_schema: bool
) -> None:
    for schema in forked.glob("*/schema-*"):
        if has_schema:
            published.put(f"{layout.SCHEMAS}{schema.name}", schema.read_bytes())
        else:
            schema.unlink()
    command, *rest = arguments
    here, there = run(command, forked, *rest), run(command, published.address, *rest)
    assert without_ages(there.out) == without_ages(here.out)
    assert (there.code, there.err) == (here.code, here.err)
    assert list(temporary.iterdir()) == [], "what was brought is still there"


def test_documents_name_the_address(run: Run, published: Store) -> None:
    for command in ("log", "verify"):
        assert run(command, published.address, "--json").document["directory"] == published.address


def test_the_life_of_a_key_is_read_from_a_store(run: Run, keys: KeyTableChain, s3_address: str) -> None:
    store = open_store(s3_address)
    put_commits(store, keys.run_dir)
    schema = next(keys.run_dir.glob("*/schema-*"))
    store.put(f"{layout.SCHEMAS}{schema.name}", schema.read_bytes())
    for key in ("7", "9", "1000"):
        here, there = run("key", keys.run_dir, ROWS, key), run("key", s3_address, ROWS, key)
        assert without_ages(there.out) == without_ages(here.out)
        assert (there.code, there.err) == (here.code, here.err)


def test_only_what_is_needed_is_fetched(run: Run, published: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests are enough for a history: a store without any data has the same."""
    before = without_ages(run("log", published.address).out)
    for entry in list(published.list_after(layout.DATA)):
        published.delete(entry.name)
    assert without_ages(run("log", published.address).out) == before
    assert run("show", published.address, "1.3").code == 0


def test_damage_in_a_store_is_found_and_named(run: Run, published: Store) -> None:
    log = CommitLog(published)
    changed, _ = log.read(Kind.DELTA, Position(1, 3))
    name = layout.data_name(changed, changed.files[0].name)
    content = bytearray(published.get(name, max_bytes=1_000_000))
    content[-1] ^= 1
    published.put(name, bytes(content))
    short, _ = log.read(Kind.DELTA, Position(1, 4))
    published.put(layout.data_name(short, short.files[-1].name), b"")
    gone, _ = log.read(Kind.DELTA, Position(1, 5))
    published.delete(layout.data_name(gone, gone.files[-1].name))
    published.put(layout.log_name(Kind.DELTA, Position(2, 2)), b"{")
    done = run("verify", published.address)
    assert done.code == 1
    assert f"{name}: {changed.files[0].name} of 1.3 does not have the digest" in done.err.replace(
        layout.data_prefix(changed.node) + changed.files[0].name + " of", f"{changed.files[0].name} of"
    )
    assert "has only 0 bytes" in done.err
    assert "has no object" in done.err
    assert layout.log_name(Kind.DELTA, Position(2, 2)) in done.err
    assert run("diff", published.address, "1.2", "1.3").code == 1


def test_with_a_key_what_it_did_not_sign_is_refused(
    run: Run, published: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_bytes(b"0123456789abcdef0123456789abcdef")
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "key"))
    done = run("log", published.address)
    assert done.code == 1
    assert f"cannot be used: {layout.log_name(Kind.DELTA, Position(1, 2))}" in done.err


def test_an_empty_store_is_a_wrong_argument(run: Run, s3_address: str) -> None:
    done = run("log", s3_address)
    assert done.code == 2
    assert "nothing was published" in done.err


def test_a_store_that_is_away_is_said_to_be(run: Run) -> None:
    done = run("log", "s3://bucket/run?endpoint=http://127.0.0.1:9")
    assert done.code == 1
    assert "is it up" in done.err


@pytest.mark.parametrize("name", ["forked", "keyed", "keras"])
def test_a_compacted_store_has_the_same_values(run: Run, s3_address: str, tmp_path: Path, name: str) -> None:
    chain = golden_chain(name)
    store = open_store(s3_address)
    run_dir = chain.copy_to(tmp_path)
    put_commits(store, run_dir)
    for schema in run_dir.glob("*/schema-*"):
        store.put(f"{layout.SCHEMAS}{schema.name}", schema.read_bytes())
    done = run("compact", s3_address, "--json")
    assert (done.code, done.document["position"]) == (0, chain.newest)
    assert done.document["bytes"] > 0
    position = Position.parse(chain.newest)
    assert CommitLog(store).head().full == position
    assert run("verify", s3_address).code == 0
    assert run("compact", s3_address).out == f"{chain.newest} is a full already\n"
    newcomer = tmp_path / "newcomer"
    fetch_state(store, newcomer, there=positions_in(CommitLog(store)), disk=Disk())
    assert [manifest.kind for manifest in Scanner(newcomer).scan().manifests] == [Kind.FULL]
    state = chain.states[chain.newest]
    assert digests(replay(newcomer, position, state)) == state


def test_a_trainer_that_publishes_a_full_of_the_same_state_goes_on(
    run: Run, s3_address: str, tmp_path: Path
) -> None:
    """It was writing that when the store was compacted: both are right, and neither has files of the other."""
    chain, store = TableChain(tmp_path / "run"), open_store(s3_address)
    full = chain.close_with_full([1, 2])
    put_commits(store, chain.run_dir, chain.manifests[:2])
    assert run("compact", s3_address).code == 0
    put_commits(store, chain.run_dir, [full])
    kept, _ = CommitLog(store).read(Kind.FULL, full.position)
    assert kept.node == full.node
    assert kept.prefix.endswith("-compacted")
    assert run("verify", s3_address).code == 0


def test_what_cannot_be_compacted_is_said(run: Run, forked: Path, published: Store) -> None:
    before = run("log", published.address, "--json").document
    for arguments, said in (
        (("compact", published.address, "--keep-fulls", 1), "--keep-fulls is for directories"),
        (("compact", published.address, "7.7"), "holds no position 7.7"),
    ):
        done = run(*arguments)
        assert (done.code, done.out) == (2, ""), arguments
        assert said in done.err
    assert run("log", published.address, "--json").document == before
    (forked / MARKER).write_text(json.dumps({"store": published.address}))
    done = run("compact", forked)
    assert (done.code, done.out) == (2, "")
    assert f"hotdelta compact {published.address}" in done.err


def test_a_folded_delta_is_told_as_any_other(run: Run, s3_address: str, tmp_path: Path) -> None:
    """The positions between are nowhere, and nothing misses them."""
    chain, store = TableChain(tmp_path / "run"), open_store(s3_address)
    links = [chain.delta([row, row + 1]) for row in range(5)]
    folded = fold(chain.run_dir, links[1:], tmp_path / "folded", disk=Disk())
    put_commits(store, chain.run_dir, [*chain.manifests[:1], links[0]])
    put_commits(store, tmp_path / "folded", [folded])
    assert run("verify", s3_address).code == 0
    log = run("log", s3_address, "--json").document
    assert [commit["position"] for commit in log["commits"]] == ["1.6", "1.2", "1.1"]
    assert (log["newest"], log["problem"]) == ("1.6", None)
    difference = run("diff", s3_address, "1.2", "1.6", "--json").document
    assert (difference["deltas"], [table["key"] for table in difference["tables"]]) == (1, [TABLE, SLOT])
    assert [table["rows_changed"] for table in difference["tables"]] == [5, 5]
    assert run("show", s3_address, "1.6").code == 0
    assert "holds no position 1.4" in run("show", s3_address, "1.4").err
    assert run("compact", s3_address).code == 0
