"""`hotdelta doctor`: what is in order is ok, and what would keep somebody from working is found and named."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hotdelta.chain import TrainerLock
from hotdelta.chain.format import names
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from hotdelta.cli.doctor import machine, run_directory, versions
from hotdelta.cli.doctor.check import Check
from loader.status import LoaderStatus, Quarantined, RefusedManifest, State
from tests.cli.conftest import Run
from tests.golden.golden_chains import golden_chain
from tests.server.connections import serving
from tests.server.fake_model import FakeModel


def verdicts(checks: Iterable[Check]) -> dict[str, str]:
    return {check.name: str(check.verdict) for check in checks}


def found_in(run: Run, *arguments: object) -> dict[str, tuple[str, str]]:
    """By name, the verdict and what was found; of several checks with one name the last."""
    document = run("doctor", *arguments, "--json").document
    return {check["name"]: (check["verdict"], check["found"]) for check in document["checks"]}


def root_with(tmp_path: Path, **files: str) -> Path:
    """A /proc and /sys of one's own: `mounts` is proc/mounts."""
    places = {
        "mounts": "proc/mounts",
        "locks": "proc/locks",
        "meminfo": "proc/meminfo",
        "huge_pages": "sys/kernel/mm/transparent_hugepage/enabled",
    }
    for name, content in files.items():
        path = tmp_path / "root" / places[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "root"


def test_a_chain_in_order_can_be_resumed_and_exported(keyed: Path, run: Run) -> None:
    done = run("doctor", keyed, "--write")
    assert done.code == 0
    found = found_in(run, keyed, "--write")
    for name in ("permissions", "writing", "chain", "files", "resume", "export"):
        assert found[name][0] == "ok", found[name]
    assert found["resume"][1] == "a trainer would go on from 2.2, step 4"
    assert done.lines[-1].endswith(" 0 fail")
    assert not list((keyed / names.DELTA_DIRECTORY).glob(".tmp-*"))


@pytest.mark.parametrize("name", ["forked", "io", "keras", "slot_names", "tf1", "tf1_servers", "tf2_servers"])
def test_no_chain_of_a_trainer_fails(tmp_path: Path, run: Run, name: str) -> None:
    found = found_in(run, golden_chain(name).copy_to(tmp_path))
    assert [name for name, (verdict, _) in found.items() if verdict == "fail"] == []


def test_a_directory_before_the_first_save_is_no_failure(tmp_path: Path, run: Run) -> None:
    done = run("doctor", tmp_path, "--write", "--json")
    (chain,) = [check for check in done.document["checks"] if check["name"] == "chain"]
    assert (done.code, chain["verdict"]) == (0, "warn")
    assert list(tmp_path.iterdir()) == []
    assert run("doctor", tmp_path / "nowhere").code == 2


def test_a_file_that_is_missing_or_short_is_named(forked: Path, run: Run) -> None:
    deltas = forked / names.DELTA_DIRECTORY
    data = next(deltas.glob("incremental_model.ckpt-4-2.2.data-00001*"))
    data.write_bytes(data.read_bytes()[:-1])
    done = run("doctor", forked)
    assert done.code == 1
    found = found_in(run, forked)
    assert found["files"][0] == found["resume"][0] == "fail"
    assert data.name in found["files"][1]
    assert found["export"][0] == "ok"


def test_a_missing_schema_or_serving_graph_is_what_keeps_from_exporting(keyed: Path, run: Run) -> None:
    deltas = keyed / names.DELTA_DIRECTORY
    next(deltas.glob("serving_graph-*/saved_model.pb")).unlink()
    assert found_in(run, keyed)["export"][0] == "warn"
    next(deltas.glob("schema-*.json")).write_text("{}")
    assert found_in(run, keyed)["export"][0] == "fail"


def test_a_hole_and_a_refused_manifest_are_found(forked: Path, run: Run) -> None:
    (forked / names.DELTA_DIRECTORY / "incremental_model.ckpt-3-2.1.manifest.json").write_text("{")
    found = found_in(run, forked)
    assert found["manifests"][0] == found["chain"][0] == "fail"
    assert "hole" in found["chain"][1]


def test_signed_commits_without_a_key_are_warned_of(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = golden_chain("signed")
    run_dir = chain.copy_to(tmp_path)
    monkeypatch.delenv(KEY_FILE_VARIABLE, raising=False)
    assert found_in(run, run_dir)["signatures"][0] == "warn"
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(chain.key_file))
    assert "signatures" not in found_in(run, run_dir)


def test_temporary_files_of_a_killed_save_are_found_when_they_are_old(forked: Path, run: Run) -> None:
    left = forked / names.DELTA_DIRECTORY / ".tmp-incremental_model.ckpt-9.index"
    left.touch()
    assert "leftovers" not in found_in(run, forked)
    os.utime(left, (1e9, 1e9))
    assert found_in(run, forked)["leftovers"][0] == "warn"


def test_a_trainer_that_runs_is_seen_without_touching_its_lock(forked: Path) -> None:
    assert "none was ever started" in run_directory.check_trainer(forked, Path("/")).found
    with TrainerLock(forked):
        held = run_directory.check_trainer(forked, Path("/"))
    released = run_directory.check_trainer(forked, Path("/"))
    if Path("/proc/locks").read_text():
        assert f'"pid": {os.getpid()}' in held.found
    assert released.found == "none runs on this machine"


def test_a_file_system_that_takes_no_commit_is_found_out() -> None:
    check = run_directory.check_writing(Path("/proc/self"))
    assert str(check.verdict) == "fail"


def test_memory_is_compared_with_what_a_server_would_hold(tmp_path: Path, keyed: Path) -> None:
    from hotdelta.chain.history.state import peek_state

    state = peek_state(keyed)
    assert state is not None
    small = root_with(tmp_path, meminfo="MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    assert str(run_directory.check_memory(state, small).verdict) == "warn"
    large = root_with(tmp_path, meminfo="MemAvailable: 800000 kB\n")
    assert str(run_directory.check_memory(state, large).verdict) == "ok"


@pytest.mark.parametrize(
    "kind, verdict",
    [("ext4", "ok"), ("nfs4", "warn"), ("fuse.s3fs", "warn"), ("overlay", "warn"), ("tmpfs", "warn")],
)
def test_the_file_system_of_a_directory_is_the_innermost(tmp_path: Path, kind: str, verdict: str) -> None:
    place = tmp_path / "with blank" / "run"
    place.mkdir(parents=True)
    blank = str(place.parent).replace(" ", "\\040")
    root = root_with(tmp_path, mounts=f"a / xfs rw 0 0\nb {blank} {kind} rw 0 0\nc /elsewhere btrfs rw 0 0\n")
    check = machine.check_file_system(place, root)
    assert (str(check.verdict), kind in check.found) == (verdict, True)


@pytest.mark.parametrize(
    "setting, verdict", [("always [madvise] never", "ok"), ("always madvise [never]", "warn"), (None, "warn")]
)
def test_huge_pages_that_are_switched_off_are_warned_of(
    tmp_path: Path, setting: str | None, verdict: str
) -> None:
    root = tmp_path / "root" if setting is None else root_with(tmp_path, huge_pages=setting)
    assert str(machine.check_huge_pages(root).verdict) == verdict


def test_this_machine_can_watch_a_directory(tmp_path: Path) -> None:
    assert str(machine.check_events(tmp_path, Path("/")).verdict) == "ok"
    assert str(machine.check_events(tmp_path / "nowhere", Path("/")).verdict) == "warn"
    assert str(machine.check_events(tmp_path, tmp_path).verdict) == "warn"


def test_versions_outside_the_bounds_and_missing_ones_are_named() -> None:
    requirements = ["numpy>=1.26", "tensorflow<2.22,>=2.18", "keras<3.16,>=3.8", "pytest>=8; extra == 'test'"]
    known = {"numpy": "2.0.1", "tensorflow-cpu": "2.22.0", "keras": "3.15.1"}
    (check,) = versions.checks(requirements, known.get)
    assert "tensorflow 2.22.0 is not <2.22,>=2.18" in check.found
    (check,) = versions.checks(requirements, {"numpy": "2.0.1"}.get)
    assert check.found == "not installed: tensorflow, keras"
    assert verdicts(versions.checks(requirements, {**known, "tensorflow-cpu": "2.21.3"}.get)) == {
        "versions": "ok"
    }


@pytest.mark.parametrize(
    "found, bounds, is_within",
    [
        ("2.18", ">=2.18", True),
        ("2.18.0", "<2.18", False),
        ("2.9.9", ">=2.10", False),
        ("3.16.0.dev1", "<3.16,>=3.8", False),
        ("1", "", True),
    ],
)
def test_bounds_are_compared_by_numbers(found: str, bounds: str, is_within: bool) -> None:
    assert versions.is_within(found, bounds) is is_within


class TroubledModel(FakeModel):
    """Says what it was given instead of what is so."""

    changes: dict[str, object]

    def status(self) -> LoaderStatus:
        return replace(super().status(), **getattr(self, "changes", {}))


@contextmanager
def troubled(**changes: object) -> Iterator[str]:
    model = TroubledModel()
    model.changes = changes
    with serving(model) as (host, port):
        yield f"http://{host}:{port}"


def test_a_server_in_order_is_ok(run: Run) -> None:
    with troubled() as url:
        done = run("doctor", url)
        assert done.code == 0
        found = found_in(run, url)
    assert {verdict for verdict, _ in found.values()} == {"ok"}


def test_a_server_that_is_stuck_fails_with_its_reason(run: Run) -> None:
    with troubled(state=State.DEGRADED, reason="a hole at 1.2") as url:
        assert run("doctor", url).code == 1
        verdict, found = found_in(run, url)["updates"]
    assert verdict == "fail"
    assert "a hole at 1.2" in found


def test_what_a_server_leaves_out_is_warned_of(run: Run) -> None:
    node = FakeModel().status().node
    assert node is not None
    with troubled(
        quarantined=(Quarantined(node, "NaN in items", "values"),),
        refused=(RefusedManifest("x.manifest.json", "too large"),),
        are_orders_kept=False,
        is_incremental=False,
    ) as url:
        found = found_in(run, url)
        assert run("doctor", url).code == 0
    warned = {name: text for name, (verdict, text) in found.items() if verdict == "warn"}
    assert warned.keys() == {"quarantine", "manifests", "orders", "serving"}
    assert warned["quarantine"] == "1.1: NaN in items"


def test_what_was_rolled_back_is_taken_again_by_a_resume_and_not_released(run: Run) -> None:
    node = FakeModel().status().node
    assert node is not None
    with troubled(quarantined=(Quarantined(node, "it was rolled back", "rolled_back"),)) as url:
        checks = run("doctor", url, "--json").document["checks"]
    (warned,) = [check for check in checks if check["verdict"] == "warn"]
    assert warned["found"] == "1.1: it was rolled back"
    assert warned["advice"].endswith("hotdelta resume URL")
    assert "release" not in str(checks)


def test_where_no_server_answers_that_is_the_failure(run: Run) -> None:
    done = run("doctor", "http://127.0.0.1:9", "--json")
    assert done.code == 1
    assert [check["verdict"] for check in done.document["checks"]] == ["fail"]
