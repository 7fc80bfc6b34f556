"""What /metrics says of updates is what happened: with a real trainer, a real loader, and the application around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from hotdelta import errors
from hotdelta.chain import Position
from hotdelta.figures import Histogram
from loader import Loader, LoaderSettings, SanityLimits, SanitySettings
from loader.lag import STAGES, Lag
from loader.update_figures import CAUSES, RECENT_UPDATES, UpdateFigures, cause_of
from tests.loader.step_model import ROWS, KeyedStepModel, Trainer, export, find_commit, serving_file
from tests.server.application import application
from tests.server.metrics.scrape import Scrape, scrape
from tests.waiting import wait_until

StartTrainer = Callable[[], Trainer]
QUESTION = {"inputs": {"ids": [1, 2, 3]}}
MAX_WAIT_MS = 60_000


@contextmanager
def served(root: Path, **settings: object) -> Iterator[TestClient]:
    """An application that follows root/run, which everything is asked of."""
    chosen = LoaderSettings(
        export_dir=root / "export",
        checkpoint_dir=root / "run",
        poll_seconds=0.2,
        late_data_seconds=0.5,
        **settings,  # type: ignore[arg-type]
    )
    app = application(Loader(chosen), model_name="steps", max_wait_ms=MAX_WAIT_MS)
    with TestClient(app, raise_server_exceptions=False) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200, lambda: client.get("/readyz").text)
        yield client


def wait_for(client: TestClient, position: Position) -> None:
    """Its first answer is counted a moment later."""
    answer = client.post("/predict", json={**QUESTION, "min_position": str(position), "wait_ms": MAX_WAIT_MS})
    assert answer.status_code == 200, answer.text


def wait_for_told(client: TestClient, condition: Callable[[Scrape], bool], what: str) -> Scrape:
    wait_until(lambda: condition(scrape(client)), lambda: f"{what}:\n{scrape(client).text}")
    return scrape(client)


@pytest.mark.I7
def test_an_applied_delta_is_counted_with_its_rows_bytes_and_stages(root: Path, train: StartTrainer) -> None:
    with served(root) as client:
        before = scrape(client)
        assert before.get("hotdelta_updates_total", model="steps", kind="delta") == 0
        assert before["hotdelta_live_seq"] == 2

        trainer = train()
        first = trainer.train([1, 5, 9])
        wait_for(client, first)
        second = trainer.train([1])
        wait_for(client, second)

        told = wait_for_told(
            client, lambda told: told["hotdelta_update_lag_seconds_count"] == 2, "two updates"
        )
        manifests = [find_commit(root / "run", position) for position in (first, second)]
        assert told.get("hotdelta_updates_total", model="steps", kind="delta") == 2
        for table in ("users", "items"):
            rows = told.get("hotdelta_update_rows_total", model="steps", table=table)
            assert rows == 4 == sum(manifest.tables[table].rows_changed for manifest in manifests)
            assert told.get("hotdelta_table_rows", model="steps", table=table) == ROWS
        assert told["hotdelta_update_bytes_total"] == sum(manifest.serving_bytes for manifest in manifests)
        for stage in STAGES[1:]:
            count = told.get("hotdelta_update_stage_seconds_count", model="steps", stage=stage)
            # Without --probe nobody asks, and what is made here is not fetched.
            assert count == (0 if stage in ("probe", "fetch") else 2), stage
        # Nobody told this trainer when its examples happened.
        assert told.get("hotdelta_update_stage_seconds_count", model="steps", stage="event_to_trained") == 0
        assert told["hotdelta_live_run"] == told["hotdelta_newest_run"] == second.run
        assert told["hotdelta_live_seq"] == told["hotdelta_newest_seq"] == second.seq
        assert told["hotdelta_live_step"] == trainer.step
        assert told["hotdelta_behind_seconds"] == told["hotdelta_behind_commits"] == 0
        assert told["hotdelta_undo_updates"] == 2
        assert 0 < told["hotdelta_undo_bytes"] < told["hotdelta_undo_budget_bytes"]
        assert abs(time.time() - told["hotdelta_live_since_timestamp_seconds"]) < 600


def test_an_update_that_is_refused_is_counted_by_its_cause(root: Path, train: StartTrainer) -> None:
    limits = SanityLimits(max_abs=1.5)
    with served(root, sanity=SanitySettings(limits, limits)) as client:
        bad = train().train([1])

        told = wait_for_told(
            client,
            lambda told: told.get("hotdelta_quarantined", model="steps", cause="values") == 1,
            str(bad),
        )

        assert told.get("hotdelta_update_failures_total", model="steps", cause="values") == 1
        assert told.get("hotdelta_update_state", model="steps", state="degraded") == 1
        assert told["hotdelta_behind_commits"] == 1
        assert told["hotdelta_behind_seconds"] > 0
        assert told.get("hotdelta_updates_total", model="steps", kind="delta") == 0


def test_a_damaged_file_is_another_cause(root: Path, train: StartTrainer) -> None:
    trainer = train()
    with served(root) as client:
        position = trainer.train([1])
        wait_for(client, position)
        trainer.close()
        path = serving_file(root / "run", find_commit(root / "run", position))
        damaged = bytearray(path.read_bytes())
        damaged[-1] ^= 1
        # A server that starts finds it so.
        path.write_bytes(damaged)
    with served(root) as client:
        told = wait_for_told(
            client, lambda told: told.get("hotdelta_quarantined", model="steps", cause="files") == 1, "damage"
        )
        failures = told.get("hotdelta_update_failures_total", model="steps", cause="files")
        assert failures is not None
        assert failures >= 1


def test_keys_that_come_and_go_are_counted(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "run", model=KeyedStepModel())
    try:
        trainer.train()
        export(tmp_path / "run", tmp_path / "export")
        with served(tmp_path) as client:
            positions = [trainer.train([1, 2]) for _ in range(4)]
            wait_for(client, positions[-1])
            told = wait_for_told(
                client,
                lambda told: told.get("hotdelta_updates_total", model="steps", kind="delta") == 4,
                "four updates",
            )
        records = [find_commit(tmp_path / "run", position).tables["keyed/rows"] for position in positions]
        keyed = {"model": "steps", "table": "keyed/rows"}
        new = told.get("hotdelta_keys_new_total", **keyed)
        assert new == sum(record.keys_new or 0 for record in records) > 0
        assert told.get("hotdelta_keys_deleted_total", **keyed) == sum(r.rows_deleted for r in records) > 0
        assert told.labels_of("hotdelta_keys_new_total") == [keyed]
        assert told.get("hotdelta_table_rows", **keyed) == records[-1].rows_in_use
        # Beside those of its keys it has the row of all others.
        assert told.get("hotdelta_table_max_rows", **keyed) == 100_001
        # Each prediction asks for keys that are not there.
        assert told["hotdelta_unknown_keys_total"] > 0
    finally:
        trainer.close()


def test_every_error_has_a_cause_of_a_few() -> None:
    assert cause_of(errors.SanityError("NaN")) == "values"
    assert cause_of(errors.DamagedError("size", position="1.1", path=Path("x"))) == "files"
    assert cause_of(errors.ApplyError("it cannot")) == "apply"
    assert cause_of(errors.ManifestError("a field")) == "other"
    assert {cause_of(errors.SanityError("")), "rolled_back"} <= set(CAUSES)


def lag_at(seq: int, *, first_served_at: float | None = None) -> Lag:
    return Lag(
        position=Position(1, seq),
        step=seq,
        kind="delta",
        rows=0,
        bytes=10,
        event_at=None,
        trained_at=100.0,
        # The clock of the trainer is ahead of ours.
        committed_at=90.0,
        seen_at=95.0,
        verify_ms=0,
        stage_ms=0,
        preimage_ms=0,
        gate_wait_ms=0,
        apply_ms=0,
        applied_at=96.0,
        first_served_at=first_served_at,
    )


def test_no_time_is_negative_whatever_the_clocks_say() -> None:
    figures = UpdateFigures()
    figures.count(lag_at(1))
    figures.time(lag_at(1))

    counted = figures.stages["trained_to_committed"].read()

    assert (sum(counted.counts), counted.sum) == (1, 0.0)
    assert sum(figures.served.read().counts) == 0


def test_only_the_newest_updates_are_remembered_and_as_they_were_first_served() -> None:
    figures = UpdateFigures()
    for seq in range(1, RECENT_UPDATES + 10):
        figures.count(lag_at(seq))
        figures.time(lag_at(seq, first_served_at=97.0))

    assert len(figures.recent) == RECENT_UPDATES
    assert figures.recent[-1] == lag_at(RECENT_UPDATES + 9, first_served_at=97.0)
    assert figures.bytes == 10 * (RECENT_UPDATES + 9)


def test_a_value_belongs_to_the_first_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)

    assert histogram.read().counts == (2, 2, 1)
    assert histogram.read().sum == 7.5
