"""`hotdelta compact` on chains that trainers go on with and servers follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.chain import Position, TrainerLock
from hotdelta.chain.format import names
from loader import Loader
from tests.chain_replay import replay
from tests.cli.conftest import Run
from tests.golden.golden_chains import digests, golden_chain
from tests.golden.keras_recipes import batch, checkpoint_of, live_values, ranker
from tests.loader.step_model import serving, wait_for_position
from tests.waiting import wait_until


@pytest.mark.parametrize("name", ["forked", "io", "keras", "keyed", "tf1", "tf1_servers", "tf2_servers"])
def test_every_position_keeps_its_values(tmp_path: Path, run: Run, name: str) -> None:
    chain = golden_chain(name)
    run_dir = chain.copy_to(tmp_path)

    assert run("compact", run_dir).code == 0

    assert run("verify", run_dir).code == 0
    for position, state in chain.states.items():
        assert digests(replay(run_dir, Position.parse(position), state)) == state, position


def test_training_goes_on_from_the_full_alone(tmp_path: Path, run: Run) -> None:
    chain = golden_chain("keras")
    run_dir = chain.copy_to(tmp_path)

    document = run("compact", run_dir, "--keep-fulls", 1, "--json").document

    assert (document["position"], document["deltas"]) == (chain.newest, 3)
    assert len(document["deleted"]) > 5
    assert [commit["position"] for commit in run("log", run_dir, "--json").document["commits"]] == [
        chain.newest
    ]
    with checkpoint_of(run_dir, {"batch": 0}) as checkpoint:
        model = ranker(seed=5)
        resumed = checkpoint.resume(model)
        assert resumed is not None
        assert (str(resumed.position), resumed.step) == (chain.newest, chain.step)
        assert digests(live_values(checkpoint)) == chain.states[chain.newest]
        model.train_on_batch(*batch(chain.step + 1))
        checkpoint.step()
        checkpoint.save()
    assert run("verify", run_dir).code == 0


def test_a_server_follows_through_it(tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """It was there before, everything that it had read is deleted, and the next delta is applied as ever."""
    chain = golden_chain("keras")
    run_dir = chain.copy_to(tmp_path)
    caplog.set_level("INFO", "loader")
    with serving(tmp_path) as loader:
        wait_for_position(loader, Position.parse(chain.newest))
        assert run("compact", run_dir, "--keep-fulls", 1).code == 0
        with checkpoint_of(run_dir, {"batch": 0}) as checkpoint:
            model = ranker(seed=5)
            assert checkpoint.resume(model) is not None
            model.train_on_batch(*batch(chain.step + 1))
            checkpoint.step()
            checkpoint.save()
        newest = run("log", run_dir, "--json").document["newest"]
        wait_until(lambda: updated_to(loader, newest), "the delta is served")
        assert loader.status().quarantined == ()
    kinds = {record.__dict__.get("fields", {}).get("kind") for record in caplog.records}
    assert "delta" in kinds
    assert "full" not in kinds


def updated_to(loader: Loader, position: str) -> bool:
    lag = loader.status().last_lag
    return lag is not None and (str(lag.position), lag.kind) == (position, "delta")


def test_a_full_is_a_full_already(keyed: Path, run: Run) -> None:
    assert run("compact", keyed, "2.1").out == "2.1 is a full already\n"


def test_where_a_trainer_runs_nothing_is_done(forked: Path, run: Run) -> None:
    before = run("log", forked, "--json").document
    with TrainerLock(forked):
        done = run("compact", forked)
    assert (done.code, done.out) == (1, "")
    assert "it makes fulls by itself" in done.err
    assert run("log", forked, "--json").document == before
    assert run("compact", forked).code == 0, "the lock is free again"


def test_what_is_damaged_is_not_made_into_a_full(forked: Path, run: Run) -> None:
    data = next((forked / names.DELTA_DIRECTORY).glob("incremental_model.ckpt-3-2.1.data-00000*"))
    content = bytearray(data.read_bytes())
    content[0] ^= 1
    data.write_bytes(content)
    done = run("compact", forked)
    assert (done.code, done.out) == (1, "")
    assert "does not have the digest" in done.err


def test_nothing_is_deleted_while_a_manifest_is_refused(forked: Path, run: Run) -> None:
    manifest = forked / names.DELTA_DIRECTORY / "incremental_model.ckpt-4.manifest.json"
    manifest.write_text("{")
    done = run("compact", forked, "--keep-fulls", 1)
    assert done.code == 1
    assert "nothing was deleted" in done.err
    assert run("show", forked, "1.2").code == 0
