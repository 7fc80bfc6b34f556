"""The values that an export itself holds: bad ones are not served, whether the export is the first or a newer one."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotdelta import signatures as contract
from hotdelta.chain import Position, Scanner, Schema
from hotdelta.errors import NotReadyError
from loader import Loader, LoaderStatus, SanityLimits, SanitySettings, StaticLoader
from loader.model.live_model import LiveModel
from tests.loader.checks.test_quarantine import GATES_OFF, poison
from tests.loader.step_model import (
    Trainer,
    answer,
    assert_serves,
    commit_paths,
    export,
    serving,
    wait_for_position,
    wait_for_status,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.I4

StartTrainer = Callable[[], Trainer]
READY = Position(1, 2)


def export_bad_values(root: Path, trainer: Trainer, value: float = np.nan) -> Position:
    bad = poison(trainer, value)
    export(root / "run", root / "export")
    return bad


@pytest.fixture
def apart(root: Path) -> Path:
    """The chain lies elsewhere/, and the server's own directory is empty: only an export can bring bad values."""
    shutil.copytree(root / "run", root / "elsewhere")
    remove_chain(root)
    return root


def export_from_elsewhere(root: Path, value: float) -> tuple[Trainer, Position]:
    trainer = Trainer(root / "elsewhere")
    bad = poison(trainer, value)
    export(root / "elsewhere", root / "export")
    return trainer, bad


def remove_chain(root: Path) -> None:
    """As somebody who copies exports only."""
    for manifest in Scanner(root / "run").scan().manifests:
        for path in reversed(commit_paths(root / "run", manifest)):
            path.unlink()


def wait_until_listed(loader: Loader, position: Position, reason: str) -> None:
    def is_listed(status: LoaderStatus) -> bool:
        return any(item.node.position == position and reason in item.reason for item in status.quarantined)

    wait_for_status(loader, is_listed, f"{position} is listed: {reason}")


@pytest.mark.parametrize("value, reason", [(np.inf, "NaN or inf"), (1e38, "larger than")])
def test_a_new_export_with_bad_values_is_not_swapped_in(
    apart: Path, value: float, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with serving(apart) as loader:
        wait_for_position(loader, READY)
        kept = answer(loader)[0]["users"].tobytes()
        trainer, bad = export_from_elsewhere(apart, value)
        trainer.close()
        wait_until_listed(loader, bad, "export 2 is quarantined: 'users'")
        wait_until_listed(loader, bad, reason)
        assert (loader.status().export_version, answer(loader)[0]["users"].tobytes()) == (1, kept)
        assert caplog.text.count("loading export") == 2


def test_a_later_full_is_loaded_into_it(apart: Path) -> None:
    with serving(apart) as loader:
        wait_for_position(loader, READY)
        trainer, bad = export_from_elsewhere(apart, np.nan)
        wait_until_listed(loader, bad, "export 2")
        healed = trainer.train_full()
        trainer.close()
        shutil.copytree(apart / "elsewhere", apart / "run", dirs_exist_ok=True)
        wait_for_position(loader, healed)
        wait_for_status(loader, lambda status: status.export_version == 2, "the new export")
        wait_for_status(
            loader,
            lambda status: not any("export" in item.reason for item in status.quarantined),
            "the export is not listed any more",
        )
        assert_serves(loader, trainer.model)


def test_a_server_that_starts_goes_around_it_through_a_full(root: Path, train: StartTrainer) -> None:
    shutil.rmtree(root / "export" / "1")
    bad = export_bad_values(root, train())
    with serving(root) as loader:
        wait_for_position(loader, READY)
        assert np.isfinite(answer(loader)[0]["users"]).all()
        wait_until_listed(loader, bad, "NaN")


def test_without_a_full_nothing_is_served_until_an_operator_releases_it(
    root: Path, train: StartTrainer
) -> None:
    shutil.rmtree(root / "export" / "1")
    trainer = train()
    bad = export_bad_values(root, trainer)
    trainer.close()
    remove_chain(root)
    with serving(root) as loader:
        wait_until_listed(loader, bad, "NaN")
        wait_for_status(loader, lambda status: "export 1 is quarantined" in status.reason, "it says why")
        with pytest.raises(NotReadyError):
            answer(loader)
        loader.release(bad)
        wait_for_position(loader, bad)
        assert np.isnan(answer(loader)[0]["users"][5]).all()
        assert loader.status().quarantined == ()


def test_without_limits_an_export_with_bad_values_is_served(root: Path, train: StartTrainer) -> None:
    bad = export_bad_values(root, train())
    with serving(root, sanity=GATES_OFF) as loader:
        wait_for_position(loader, bad)
        assert loader.status().export_version == 2
        assert np.isnan(answer(loader)[0]["users"][5]).all()


def test_an_export_that_takes_fulls_only_is_looked_at_too(
    root: Path, train: StartTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = train()
    poison(trainer, np.nan)
    shutil.rmtree(root / "export")
    export(root / "run", root / "export", save_incr_model=False)
    with serving(root) as loader:
        wait_for_position(loader, Position(1, 1))
        assert np.isfinite(answer(loader)[0]["users"]).all()
        assert "export 1 is quarantined" in caplog.text
        wait_for_position(loader, trainer.train_full())
        assert_serves(loader, trainer.model)


def test_a_limit_for_a_variable_that_does_not_exist_is_not_passed_over(root: Path) -> None:
    with serving(root, sanity=SanitySettings(by_key={"usres": {"max_abs": 1.0}})) as loader:
        status = wait_for_status(loader, lambda status: "usres" in status.reason, "it says what is wrong")
        assert "the model has bias, items, users" in status.reason


@contextmanager
def serving_statically(root: Path, **sanity: Any) -> Iterator[StaticLoader]:
    loader = StaticLoader(root / "export", poll_seconds=0.2, sanity=SanitySettings(**sanity))
    loader.start()
    try:
        yield loader
    finally:
        loader.stop()


def test_a_limit_for_a_variable_that_does_not_exist_is_not_passed_over_without_a_chain(root: Path) -> None:
    with serving_statically(root, by_key={"usres": {"max_abs": 1.0}}) as loader:
        wait_until(lambda: "'usres', which the model does not have" in loader.status().reason, "it says so")


def hide_variable(path: Path) -> None:
    """An export that can be loaded, and whose first update fails: it is fed what its metadata says, and no more."""
    document = json.loads(path.read_bytes())
    document["schema"]["variables"].pop()
    schema = Schema.from_json(json.dumps(document["schema"]).encode())
    document["schema_digest"] = schema.digest
    del document["digest"]
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("serve", [serving, serving_statically])
def test_a_model_that_cannot_be_warmed_up_is_let_go(
    root: Path, serve: Callable[[Path], AbstractContextManager[Loader | StaticLoader]]
) -> None:
    hide_variable(root / "export" / "1" / contract.METADATA_FILE)
    before = [item for item in gc.get_objects() if isinstance(item, LiveModel)]
    with serve(root) as loader:
        wait_until(lambda: "stage_rows failed" in loader.status().reason, "it says so")
        models = [item for item in gc.get_objects() if isinstance(item, LiveModel)]
        assert [model for model in models if model.signatures and model not in before] == []


def test_limits_by_key_hold_for_exports(root: Path, train: StartTrainer) -> None:
    position = train().train([3])
    export(root / "run", root / "export")
    limits = SanitySettings(SanityLimits(max_abs=1.5), by_key={"items": {"max_abs": 100.0}})
    with serving(root, sanity=limits) as loader:
        wait_until_listed(loader, position, "'users': a value of 2 is larger than 1.5")
