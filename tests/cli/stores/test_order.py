"""`hotdelta order`: given to a chain in a store, shown, and refused when it cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.chain import SigningKey
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.orders import OrderBox, Verb
from hotdelta.remote.stores.opening import open_store
from tests.chain.manifests import delta, full
from tests.cli.conftest import Run

HISTORY = (full("1.1"), delta("1.2", "1.1"), delta("1.3", "1.2"))


@pytest.fixture
def address(tmp_path: Path) -> str:
    address = f"file://{tmp_path}/store"
    log = CommitLog(open_store(address))
    for manifest in HISTORY:
        log.add(manifest, manifest.to_json())
    return address


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "orders.key"
    path.write_text("k" * 64)
    monkeypatch.setenv("HOTDELTA_ORDERS_KEY_FILE", str(path))
    return path


def test_an_order_is_given_and_shown(run: Run, address: str, key_file: Path) -> None:
    assert run("order", address).lines == ["no orders: every server serves the newest that it can"]
    done = run("order", address, "pin", "1.2", "--by", "ops")
    assert (done.code, done.out) == (0, "order 1 is given: servers with this key go to 1.2, and stay there\n")
    assert (
        run("order", address, "resume", "--by", "night").out
        == "order 2 is given: servers with this key follow again\n"
    )
    rows = [line.split() for line in run("order", address).lines[1:]]
    assert [(row[0], row[1], row[2], row[-1]) for row in rows] == [
        ("2", "resume", "1.3", "night"),
        ("1", "pin", "1.2", "ops"),
    ]
    key = SigningKey.read(key_file)
    orders = [OrderBox(open_store(address)).read(number, key=key) for number in (1, 2)]
    assert [(order.verb, order.node) for order in orders] == [
        (Verb.PIN, HISTORY[1].node),
        (Verb.RESUME, HISTORY[2].node),
    ]


def test_without_a_position_it_is_the_newest(run: Run, address: str, key_file: Path) -> None:
    assert run("order", address, "pin", "--json").document["position"] == "1.3"


def test_a_position_that_the_store_does_not_have_is_no_order(run: Run, address: str, key_file: Path) -> None:
    done = run("order", address, "pin", "1.9")
    assert done.code == 1
    assert "no commit at 1.9" in done.err
    assert run("order", address, "--json").document == {"orders": []}


def test_an_empty_store_is_told(run: Run, tmp_path: Path, key_file: Path) -> None:
    done = run("order", f"file://{tmp_path}/empty", "pin")
    assert done.code == 1
    assert "has no commits" in done.err


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["resume", "1.2"], "names no position"),
        (["pin", "1.2", "--key-file", "/nowhere"], "cannot be read"),
    ],
)
def test_wrong_usage_is_refused(
    run: Run, address: str, key_file: Path, arguments: list[str], complaint: str
) -> None:
    done = run("order", address, *arguments)
    assert done.code == 2
    assert complaint in done.err


def test_without_a_key_nobody_gives_orders(run: Run, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOTDELTA_ORDERS_KEY_FILE", raising=False)
    done = run("order", address, "pin")
    assert done.code == 2
    assert "HOTDELTA_ORDERS_KEY_FILE" in done.err
    assert run("order", "run", "pin").code == 2, "a directory is no store"
