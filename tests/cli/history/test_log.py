"""`hotdelta log` and `hotdelta show` on chains that trainers wrote, and on a running server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotdelta.chain import Position
from hotdelta.chain.format import names
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from loader import Loader, LoaderSettings
from tests.cli.conftest import Run
from tests.golden.golden_chains import golden_chain
from tests.server.application import application
from tests.server.connections import serving, serving_app
from tests.server.fake_model import FakeModel
from tests.waiting import LIMIT_SECONDS


def test_a_history_is_shown_newest_first_with_its_forks(forked: Path, run: Run) -> None:
    done = run("log", forked)

    assert (done.code, done.err) == (0, "")
    assert done.lines[0].split() == ["position", "kind", "age", "step", "rows", "bytes", "state"]
    assert [line.split()[:2] for line in done.lines[1:3]] == [["●", "2.2"], ["●", "2.1"]]
    assert done.lines[1].endswith("newest")
    assert done.lines[3].startswith("│ ●")
    assert done.lines[3].endswith("abandoned")
    assert done.lines[5] == "├─╯"
    assert done.lines[6].endswith("forked by 2.1")
    assert done.lines[-1] == "1 full, 6 deltas, together 87.1 KB"


def test_scripts_get_every_commit_with_its_state(forked: Path, run: Run) -> None:
    document = run("log", forked, "--json").document

    assert (document["newest"], document["problem"], document["refused"]) == ("2.2", None, [])
    commits = {commit["position"]: commit for commit in document["commits"]}
    assert list(commits) == ["2.2", "2.1", "1.5", "1.4", "1.3", "1.2", "1.1"]
    assert commits["1.3"]["children"] == ["1.4", "2.1"]
    assert commits["1.4"]["state"] == "abandoned"
    assert (commits["1.1"]["kinds"], commits["1.1"]["parent"]) == (["full"], None)
    assert commits["2.1"] == {
        "position": "2.1",
        "state_id": commits["2.1"]["state_id"],
        "state": "held",
        "kinds": ["delta"],
        "parent": "1.3",
        "children": ["2.2"],
        "step": 3,
        "created_at": commits["2.1"]["created_at"],
        "rows": 16,
        "bytes": commits["2.1"]["bytes"],
    }


def test_a_limit_leaves_out_the_oldest_and_says_how_many(forked: Path, run: Run) -> None:
    done = run("log", forked, "-n", 3)

    assert [line.split()[1] for line in done.lines[1:-2]] == ["2.2", "2.1", "●"]
    assert done.lines[-1].endswith("; 4 older positions not shown")
    assert len(run("log", forked, "-n", 3, "--json").document["commits"]) == 3


def test_a_hole_and_a_damaged_manifest_are_named_and_the_exit_code_says_so(forked: Path, run: Run) -> None:
    manifest = forked / names.DELTA_DIRECTORY / "incremental_model.ckpt-3-2.1.manifest.json"
    manifest.write_text("{")
    done = run("log", forked)

    assert done.code == 1
    assert str(manifest) in done.err
    assert "the chain has a hole: 2.1" in done.err
    assert done.lines[1].endswith("unreachable")
    document = run("log", forked, "--json").document
    assert document["refused"][0]["file"] == str(manifest)
    assert "hole" in document["problem"]


def test_with_a_key_only_what_it_signed_is_shown(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = golden_chain("signed")
    run_dir = chain.copy_to(tmp_path)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(chain.key_file))
    assert run("log", run_dir).code == 0
    (tmp_path / "other").write_text("0" * 32)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "other"))
    done = run("log", run_dir)
    assert done.code == 1
    assert "its signature is wrong" in done.err


@pytest.mark.parametrize("name", ["tf1_servers", "tf2_servers", "slot_names", "io", "tf1"])
def test_every_kind_of_chain_is_shown_as_it_ends(tmp_path: Path, run: Run, name: str) -> None:
    chain = golden_chain(name)
    document = run("log", chain.copy_to(tmp_path), "--json").document
    assert document["commits"][0]["position"] == document["newest"] == chain.newest


def test_one_position_is_shown_with_tables_and_files(keyed: Path, run: Run) -> None:
    done = run("show", keyed, "2.1")

    assert done.code == 0
    assert "kind          full+delta" in done.lines
    assert any(line.startswith("users/rows") and "of 1,001" in line for line in done.lines)
    assert any(line.startswith("model.ckpt-3.index") for line in done.lines)
    document = run("show", keyed, "2.1", "--json").document
    (rows,) = [table for table in document["tables"] if table["key"] == "users/rows"]
    assert (rows["shape"], rows["rows_in_use"]) == ([1001, 4], 36)
    for file in document["files"]:
        directory = keyed if file["kind"] == "full" else keyed / names.DELTA_DIRECTORY
        assert (directory / file["name"]).stat().st_size == file["bytes"]


def test_without_a_position_the_newest_is_shown(forked: Path, run: Run) -> None:
    assert run("show", forked, "--json").document["position"] == "2.2"


@pytest.mark.parametrize(
    "position, problem", [("7.7", "holds no position 7.7. it holds 1.1, 1.2"), ("x", "is not a position")]
)
def test_a_position_that_is_none_is_an_error_that_lists_what_there_is(
    forked: Path, run: Run, position: str, problem: str
) -> None:
    done = run("show", forked, position)
    assert (done.code, done.out) == (2, "")
    assert problem in done.err


def test_a_running_server_says_what_it_serves(run: Run) -> None:
    with serving(FakeModel()) as (host, port):
        url = f"http://{host}:{port}"
        done, asked = run("log", url), run("log", f"{url}/", "--json")
    assert (done.code, asked.code) == (0, 0)
    assert "position        1.1" in done.lines
    assert "state           following" in done.lines
    assert json.loads(asked.out)["update_state"] == "following"


def test_a_server_that_follows_a_chain_shows_what_it_did_with_each_commit(tmp_path: Path, run: Run) -> None:
    chain = golden_chain("keras")
    chain.copy_to(tmp_path)
    loader = Loader(LoaderSettings(export_dir=tmp_path / "export", checkpoint_dir=tmp_path / "run"))
    with serving_app(application(loader)) as (host, port):
        assert loader.wait_for(Position.parse(chain.newest), LIMIT_SECONDS)
        done, document = (
            run("log", f"http://{host}:{port}"),
            run("log", f"http://{host}:{port}", "--json").document,
        )
        limited = run("log", f"http://{host}:{port}", "-n", 1)
    drawn = [line for line in done.lines if line.startswith(("●", "◆", "│", "├"))]
    assert [line.split()[1] for line in drawn] == ["2.2", "2.1", "1.4", "1.3", "1.2", "1.1"]
    assert drawn[0].endswith("live")
    assert document["position"] == chain.newest
    assert {commit["position"] for commit in document["commits"]} >= {chain.newest, "1.3"}
    assert sum(line.startswith(("●", "◆")) for line in limited.lines) == 1


def test_where_no_server_runs_the_address_is_named(run: Run) -> None:
    done = run("log", "http://127.0.0.1:9")
    assert done.code == 1
    assert "http://127.0.0.1:9 cannot be asked" in done.err
