"""An update after which the model answers the probe badly is undone before anybody sees it."""

from __future__ import annotations

import json
import math
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hotdelta.chain import Kind, Position
from hotdelta.errors import ConfigurationError, RequestError
from hotdelta.quality_probe import MAX_ROWS, Probe
from hotdelta.sanity_limits import SanitySettings
from loader import Loader, LoaderStatus, State, StaticLoader
from loader.checks.quality import QualityProbe, area_under_curve, log_loss
from server.model_settings import ModelSettings
from tests.loader.step_model import (
    SIGNATURE,
    StepModel,
    Trainer,
    _write_values,
    export,
    find_commit,
    move_away,
    serving,
    wait_for_position,
    wait_for_status,
)
from tests.waiting import wait_until

ROWS = 20
GOOD, BETTER, RUINED = 2.0, 3.0, -2.0
FIRST_FULL, GOOD_DELTA = Position(1, 1), Position(1, 2)


class ClickModel(StepModel):
    """Odd rows are clicked at, even ones are not, as surely as `strength`; negative, it has it backwards."""

    strength = GOOD

    def __init__(self, rows: int = ROWS, width: int = 4) -> None:
        super().__init__(rows, width)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def predict(self, ids: Any) -> dict[str, Any]:
        return {"click": tf.sigmoid(tf.gather(self.users, ids)[:, 0]), "step": tf.identity(self.bias)}

    def learn(self, step: int, touched: Any, touch: Any) -> None:
        signs = np.where(np.asarray(touched) % 2 == 1, self.strength, -self.strength).astype(np.float32)
        _write_values(self.users, touched, np.repeat(signs[:, None], self.users.shape[1], axis=1))
        touch("users", touched)
        self.bias.assign(tf.fill([3], float(step)))


@pytest.fixture(scope="module")
def clicks_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run/ with a full and a good delta, and an export of it."""
    root = tmp_path_factory.mktemp("clicks")
    trainer = Trainer(root / "run", model=ClickModel())
    trainer.train()
    export(root / "run", root / "export")
    trainer.close()
    return root


@pytest.fixture
def root(clicks_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(clicks_root, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def trainer(root: Path) -> Iterator[Trainer]:
    started = Trainer(root / "run", model=ClickModel())
    yield started
    started.close()


def train(trainer: Trainer, strength: float, *, is_full: bool = False) -> Position:
    trainer.model.strength = strength
    return trainer.train_full() if is_full else trainer.train()


def written(path: Path, *, rows: int = ROWS, **limits: Any) -> Probe:
    lines = [{"output": "click", **limits}]
    lines += [{"instance": {"ids": row}, "label": row % 2} for row in range(rows)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return Probe.read(path)


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return written(tmp_path / "probe", max_log_loss=0.6, min_auc=0.9)


def clicks(loader: Loader) -> tuple[list[float], Position]:
    outputs, version = loader.predict(SIGNATURE, {"ids": np.arange(2)})
    return outputs["click"].tolist(), version.position


def reason_of(loader: Loader, position: Position) -> str:
    def find() -> list[str]:
        return [item.reason for item in loader.status().quarantined if item.node.position == position]

    wait_until(find, lambda: f"{position} is in quarantine; status is {loader.status()}")
    return find()[0]


@pytest.mark.I2
@pytest.mark.I4
def test_an_update_that_ruins_the_answers_is_undone_before_anybody_sees_it(
    root: Path, trainer: Trainer, probe: Probe
) -> None:
    seen: set[tuple[bool, Position]] = set()
    is_over = threading.Event()
    with serving(root, probe=probe) as loader:
        before = train(trainer, GOOD)
        wait_for_position(loader, before)

        def read() -> None:
            while not is_over.is_set():
                (even, odd), position = clicks(loader)
                seen.add((even < odd, position))

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        try:
            ruined = train(trainer, RUINED)
            reason = reason_of(loader, ruined)
        finally:
            is_over.set()
            for reader in readers:
                reader.join()

        # sigmoid(-2) is 0.1192: what happened was held for that likely.
        assert "the log loss, 2.127, is more than 0.6 (log loss 2.127, AUC 0 over 20 rows)" in reason
        assert f"hotdelta release URL {ruined}" in reason
        assert seen == {(True, before)}
        answers, position = clicks(loader)
        assert position == before
        assert answers == [pytest.approx(0.1192, abs=1e-4), pytest.approx(0.8808, abs=1e-4)]
        # As with other quarantined updates: what follows it waits, a full steps over it.
        train(trainer, GOOD)
        healed = train(trainer, BETTER, is_full=True)
        wait_for_position(loader, healed)
        assert clicks(loader)[0] == [pytest.approx(0.0474, abs=1e-4), pytest.approx(0.9526, abs=1e-4)]


def test_a_good_update_is_served_and_its_probe_is_a_stage_of_its_lag(
    root: Path, trainer: Trainer, probe: Probe
) -> None:
    with serving(root, probe=probe) as loader:
        wait_for_status(loader, lambda status: status.is_ready, "it is ready")
        position = train(trainer, BETTER)
        wait_until(lambda: (lag := loader.status().last_lag) and lag.position == position, "it is told")
        lag = loader.status().last_lag
        assert lag is not None
        assert lag.apply_ms > 0
        assert lag.stages_ms()["probe"] > 0


def test_what_an_operator_releases_is_not_probed(root: Path, trainer: Trainer, probe: Probe) -> None:
    with serving(root, probe=probe) as loader:
        ruined = train(trainer, RUINED)
        reason_of(loader, ruined)
        loader.release(ruined)
        wait_for_position(loader, ruined)
        # A later one has to pass again.
        again = train(trainer, 2 * RUINED)
        assert "the log loss, 4.018" in reason_of(loader, again)


@pytest.mark.parametrize("full_diff_bytes", [2**20, 0], ids=["copied", "in a second model"])
def test_a_full_is_probed_too(root: Path, trainer: Trainer, probe: Probe, full_diff_bytes: int) -> None:
    with serving(root, probe=probe, full_diff_bytes=full_diff_bytes) as loader:
        wait_for_status(loader, lambda status: status.is_ready, "it is ready")
        first = train(trainer, RUINED)
        reason_of(loader, first)
        # Nothing leads over the quarantined one but a full.
        second = train(trainer, RUINED, is_full=True)
        assert "the log loss, 2.127" in reason_of(loader, second)
        assert clicks(loader)[0][0] < 0.2
        third = train(trainer, GOOD, is_full=True)
        wait_for_position(loader, third)


def test_a_server_that_starts_does_not_catch_up_with_what_it_would_not_serve(
    root: Path, trainer: Trainer, probe: Probe
) -> None:
    before = train(trainer, BETTER)
    ruined = train(trainer, RUINED)
    with serving(root, probe=probe) as loader:
        assert "the log loss, 2.127" in reason_of(loader, ruined)
        wait_for_position(loader, before)
        assert clicks(loader)[0][0] < 0.2


@pytest.mark.parametrize("undo_bytes", [2**20, 0], ids=["by undoing", "by a full and deltas"])
def test_a_server_that_starts_serves_the_newest_state_that_passes(
    root: Path, trainer: Trainer, probe: Probe, undo_bytes: int
) -> None:
    before = train(trainer, BETTER)
    ruined = train(trainer, RUINED)
    train(trainer, 2 * RUINED)
    with serving(root, probe=probe, undo_bytes=undo_bytes) as loader:
        wait_for_position(loader, before)
        assert clicks(loader)[1] == before
        reason_of(loader, ruined)
        # As when it was there when the ruined one came.
        assert [item.node.position for item in loader.status().quarantined] == [ruined]
        wait_for_position(loader, healed := train(trainer, GOOD, is_full=True))
        assert clicks(loader)[1] == healed


def start_untrained(root: Path, trainer: Trainer) -> Position:
    """What is exported does not pass, nor does the full before it, nor the next delta."""
    shutil.rmtree(root / "export")
    train(trainer, 0.1)
    export(root / "run", root / "export")
    return train(trainer, 0.2)


def test_states_that_nobody_is_served_are_not_judged(root: Path, trainer: Trainer, probe: Probe) -> None:
    start_untrained(root, trainer)
    good = train(trainer, BETTER)
    with serving(root, probe=probe) as loader:
        wait_for_position(loader, good)
        assert clicks(loader)[0][0] < 0.2
        status = wait_for_status(loader, lambda status: status.state is State.FOLLOWING, "it follows")
        assert status.quarantined == ()


def test_a_full_from_the_start_of_training_does_not_keep_a_server_from_starting(
    root: Path, trainer: Trainer, probe: Probe
) -> None:
    train(trainer, math.nan)
    shutil.rmtree(root / "export")
    export(root / "run", root / "export")
    trainer.close()
    # Its own values are bad, so it needs the full, of zeros, and the delta after it.
    with serving(root, probe=probe) as loader:
        wait_for_position(loader, GOOD_DELTA)
        assert clicks(loader)[1] == GOOD_DELTA
        assert all(item.node.position > GOOD_DELTA for item in loader.status().quarantined)


@pytest.mark.parametrize("is_released", [False, True], ids=["a better one", "a release"])
def test_without_a_state_that_passes_a_server_waits_for(
    root: Path, trainer: Trainer, tmp_path: Path, is_released: bool
) -> None:
    # The delta that the root comes with has a log loss of 0.1269.
    probe = written(tmp_path / "probe", max_log_loss=0.1)
    newest = start_untrained(root, trainer)
    with serving(root, probe=probe) as loader:
        status = wait_for_status(loader, lambda status: bool(status.quarantined), "it is told")
        assert not status.is_ready
        assert [item.node.position for item in status.quarantined] == [newest]
        assert "the log loss, 0.5981, is more than 0.1" in status.quarantined[0].reason
        wait_for_status(
            loader, lambda status: f"export 1: it leads to {newest}" in status.reason, "it says why"
        )
        if is_released:
            loader.release(newest)
            wait_for_position(loader, newest)
        else:
            wait_for_position(loader, train(trainer, BETTER))
        wait_for_status(loader, lambda status: status.quarantined == (), "nothing is in quarantine any more")


def test_a_full_that_does_not_pass_does_not_hide_the_way_beside_it(
    root: Path, trainer: Trainer, probe: Probe
) -> None:
    ruined = train(trainer, RUINED, is_full=True)
    # All that is left is the export, which passes, and that full.
    for kind, position in ((Kind.FULL, FIRST_FULL), (Kind.DELTA, GOOD_DELTA), (Kind.DELTA, ruined)):
        move_away(root / "run", find_commit(root / "run", position, kind), root / "away")
    with serving(root, probe=probe) as loader:
        wait_for_position(loader, GOOD_DELTA)
        assert "the log loss, 2.127" in reason_of(loader, ruined)
        assert clicks(loader)[1] == GOOD_DELTA


def test_a_new_export_that_does_not_pass_leaves_the_served_one(root: Path, probe: Probe) -> None:
    shutil.copytree(root / "run", root / "elsewhere")
    other = Trainer(root / "elsewhere", model=ClickModel())
    ruined = train(other, RUINED)
    other.close()
    # No full leads the new export to another state.
    move_away(root / "run", find_commit(root / "run", FIRST_FULL, Kind.FULL), root / "away")
    with serving(root, probe=probe) as loader:
        wait_for_position(loader, GOOD_DELTA)
        export(root / "elsewhere", root / "export")
        assert "it leads to 2.1, which does not pass: the probe: the log loss, 2.127" in reason_of(
            loader, ruined
        )
        assert (loader.status().export_version, clicks(loader)[1]) == (1, GOOD_DELTA)
        loader.release(ruined)
        wait_for_position(loader, ruined)
        assert loader.status().export_version == 2


def test_what_a_server_is_pinned_at_is_served_and_the_log_says_what_the_probe_finds(
    root: Path, trainer: Trainer, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    ruined = train(trainer, RUINED)
    train(trainer, GOOD)
    with serving(root, probe=probe, pin=ruined) as loader:
        wait_for_position(loader, ruined)
        assert clicks(loader)[1] == ruined
        assert "what was ordered does not pass" in caplog.text


def test_a_full_that_a_server_starts_from_is_probed(root: Path, trainer: Trainer, probe: Probe) -> None:
    export_dir = root / "export"
    shutil.rmtree(export_dir)
    ruined = train(trainer, RUINED, is_full=True)
    export(root / "run", export_dir)
    with serving(root, probe=probe) as loader:
        wait_for_status(loader, lambda status: bool(status.quarantined), "the export is in quarantine")
        assert any("the log loss, 2.127" in item.reason for item in loader.status().quarantined)
        # The first full of the chain holds zeros: as likely as not.
        assert not loader.status().is_ready or clicks(loader)[1] < ruined
        healed = train(trainer, GOOD, is_full=True)
        wait_for_position(loader, healed)


def test_an_export_that_nothing_updates_is_probed(root: Path, trainer: Trainer, probe: Probe) -> None:
    train(trainer, RUINED)
    export(root / "run", root / "export")
    loader = StaticLoader(root / "export", poll_seconds=0.05, sanity=SanitySettings(), probe=probe)
    loader.start()
    try:
        # The one before it passes.
        wait_until(lambda: loader.status().is_ready, "an export is served")
        assert loader.status().export_version == 1
    finally:
        loader.stop()


@pytest.mark.parametrize(
    "said, problem",
    [
        ({"output": "clicks"}, "there is no output 'clicks', but 'click', 'step'"),
        ({"output": None}, "there are the outputs 'click', 'step': choose one"),
        ({"signature_name": "other"}, "there is no signature 'other'"),
    ],
)
def test_an_export_that_a_probe_does_not_fit_is_refused_and_no_update_pays_for_it(
    root: Path, trainer: Trainer, tmp_path: Path, said: dict[str, Any], problem: str
) -> None:
    probe = written(tmp_path / "probe", max_log_loss=0.6, **said)
    train(trainer, GOOD, is_full=True)
    with serving(root, probe=probe) as loader:
        status = wait_for_status(loader, lambda status: "does not fit" in status.reason, "the reason is told")
        assert problem in status.reason
        assert not status.is_ready
        assert status.quarantined == ()


@pytest.mark.parametrize("is_followed", [True, False], ids=["of a chain", "by itself"])
@pytest.mark.parametrize(
    "mistake, problem",
    [
        ({"ids": [1, 2]}, "input 'ids'"),
        ({"ids": "seven"}, "input 'ids'"),
        ({"ids": ROWS}, "id 20 is not among the 20 rows"),
    ],
    ids=["shape", "type", "value"],
)
def test_a_row_that_the_model_does_not_take_is_named_and_no_update_pays_for_it(
    root: Path, trainer: Trainer, tmp_path: Path, mistake: dict[str, Any], problem: str, is_followed: bool
) -> None:
    written(tmp_path / "probe", max_log_loss=0.6)
    lines = (tmp_path / "probe").read_text().splitlines()
    lines[3:4] = ["", json.dumps({"instance": mistake, "label": 1})]
    (tmp_path / "probe").write_text("\n".join(lines))
    probe = Probe.read(tmp_path / "probe")
    train(trainer, GOOD, is_full=True)

    def assert_named(status: LoaderStatus) -> None:
        assert f"line 5 of {tmp_path / 'probe'}" in status.reason
        assert problem in status.reason
        assert not status.is_ready
        assert status.quarantined == ()

    if is_followed:
        with serving(root, probe=probe) as loader:
            assert_named(
                wait_for_status(loader, lambda status: "does not fit" in status.reason, "it is told")
            )
        return
    static = StaticLoader(root / "export", poll_seconds=0.05, sanity=SanitySettings(), probe=probe)
    static.start()
    try:
        wait_until(lambda: "does not fit" in static.status().reason, "it is told")
        assert_named(static.status())
    finally:
        static.stop()


@pytest.mark.parametrize("undo_bytes", [2**20, 0], ids=["from memory", "by a full and deltas"])
def test_an_order_is_carried_out_whatever_the_probe_says(
    root: Path, trainer: Trainer, tmp_path: Path, undo_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    with serving(root, probe=written(tmp_path / "probe", max_log_loss=0.6), undo_bytes=undo_bytes) as loader:
        # The full that the way leads over holds zeros: its log loss is 0.6931.
        wait_for_position(loader, first := train(trainer, GOOD))
        wait_for_position(loader, train(trainer, BETTER))
        assert loader.rollback_deltas(1).position == first
        assert clicks(loader)[1] == first
        assert "does not pass" not in caplog.text
        # That one does not pass itself: it is said, and served.
        assert loader.rollback(FIRST_FULL).position == FIRST_FULL
        assert clicks(loader) == ([0.5, 0.5], FIRST_FULL)
        assert "what was ordered does not pass" in caplog.text
        assert "the log loss, 0.6931, is more than 0.6" in caplog.text
        assert all("rolled back" in item.reason for item in loader.status().quarantined)


@pytest.mark.parametrize("undo_bytes", [2**20, 0], ids=["from memory", "by a full and deltas"])
def test_an_order_may_change_answers_by_more_than_an_update(
    root: Path, trainer: Trainer, tmp_path: Path, undo_bytes: int
) -> None:
    probe = written(tmp_path / "probe", max_change=0.1)
    with serving(root, probe=probe, undo_bytes=undo_bytes) as loader:
        wait_for_position(loader, first := train(trainer, GOOD))
        wait_for_position(loader, train(trainer, BETTER))
        far = train(trainer, -BETTER)
        reason_of(loader, far)
        loader.release(far)
        wait_for_position(loader, far)
        assert loader.rollback(first).position == first
        assert clicks(loader)[1] == first


def test_answers_may_not_change_by_more_than_is_allowed(root: Path, trainer: Trainer, tmp_path: Path) -> None:
    probe = written(tmp_path / "probe", max_change=0.1)
    with serving(root, probe=probe) as loader:
        wait_for_position(loader, train(trainer, BETTER))
        far = train(trainer, 0.0)
        assert "the largest change of an answer, 0.4526, is more than 0.1" in reason_of(loader, far)
        assert clicks(loader)[0][1] > 0.9


class Sigmoid:
    """Answers with what it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def predict(self, signature: str, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        if signature != "serving_default" or feeds.keys() != {"x"}:
            raise RequestError(f"there is no {signature} of {', '.join(feeds)}")
        self.asked.append(len(feeds["x"]))
        return {"p": np.array(feeds["x"], np.float32)[:, None]}


def probing(path: Path, limits: dict[str, Any], rows: list[Any], **options: Any) -> QualityProbe:
    path.write_text("\n".join(json.dumps(line) for line in (limits, *rows)))
    return QualityProbe(Probe.read(path), **options)


def test_rows_for_which_there_is_no_time_are_left_out(tmp_path: Path) -> None:
    times = iter([0.0, 0.0, 0.02, 0.06])
    rows = [{"instance": {"x": 0.9}, "label": 0}] * 2000
    model = Sigmoid()
    quality = probing(tmp_path / "probe", {"max_log_loss": 1, "max_ms": 50}, rows, clock=times.__next__)

    assert "over 768 rows" in quality.complaint_of(model)
    assert model.asked == [256, 256, 256]


@pytest.mark.parametrize(
    "limits, row, problem",
    [
        ({"max_log_loss": 1}, {"x": 1.5}, "an answer of 1.5 is no probability"),
        ({"max_log_loss": 1}, {"x": float("nan")}, "NaN or infinite in 1 answer"),
        ({"max_change": 1}, {"y": 1}, "it is refused: there is no serving_default of y"),
        ({"max_change": 1, "output": "q"}, {"x": 1}, "there is no output 'q'. outputs: p"),
        ({"max_change": 1, "signature_name": "f"}, {"x": 1}, "it is refused: there is no f of x"),
    ],
)
def test_a_probe_that_cannot_be_judged_is_not_passed(
    tmp_path: Path, limits: dict[str, Any], row: dict[str, Any], problem: str
) -> None:
    quality = probing(tmp_path / "probe", limits, [{"instance": row, "label": 1}])
    assert problem in quality.complaint_of(Sigmoid())


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30).filter(
        lambda rows: len({label for _, label in rows}) == 2
    )
)
def test_the_area_under_the_curve_counts_pairs(rows: list[tuple[int, bool]]) -> None:
    answers, labels = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    pairs = [
        (high > low) + (high == low) / 2
        for high, is_one in rows
        if is_one
        for low, other in rows
        if not other
    ]
    assert area_under_curve(answers, labels) == pytest.approx(sum(pairs) / len(pairs))


def test_the_log_loss_is_that_of_the_textbook() -> None:
    expected = -(np.log(0.8) + np.log(1 - 0.4)) / 2
    assert log_loss(np.array([0.8, 0.4]), np.array([1.0, 0.0])) == pytest.approx(expected)
    assert log_loss(np.array([0.0]), np.array([1.0])) == pytest.approx(16.118, abs=1e-3)


ROW = {"instance": {"x": 1}, "label": 1}


@pytest.mark.I9
@pytest.mark.parametrize(
    "lines, problem",
    [
        ([], "has no limits, or no rows"),
        ([{"max_change": 1}], "has no limits, or no rows"),
        ([{}, ROW], "line 1 .* has no limit. give one of max_log_loss, min_auc, max_change"),
        ([{"max_auc": 1}, ROW], "has no limit 'max_auc'"),
        ([{"min_auc": 1.5}, ROW], "min_auc is 1.5. give a number from 0 to 1"),
        ([{"max_change": "1"}, ROW], "max_change is '1'"),
        ([{"min_auc": 0.5}, ROW], "labels of both kinds"),
        ([{"max_log_loss": 1}, {"instance": {"x": 1}}], "line 2 .* has the label None"),
        ([{"max_log_loss": 1}, {**ROW, "label": 2}], "line 2 .* has the label 2"),
        ([{"max_change": 1}, ROW, {"instance": {"y": 1}}], "line 3 .* has other inputs than the first row"),
        ([{"max_change": 1}, {"inputs": {"x": 1}}], "has an unknown member 'inputs'"),
        ([{"max_change": 1}, [1]], "line 2 .* is not an object"),
        ([{"max_change": 1}, *[ROW] * (MAX_ROWS + 1)], "choose 4096 or fewer"),
    ],
)
def test_a_probe_that_is_none_is_refused_at_the_start(tmp_path: Path, lines: list[Any], problem: str) -> None:
    (tmp_path / "probe").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(ConfigurationError, match=problem):
        ModelSettings(tmp_path / "export", tmp_path / "run", probe=tmp_path / "probe")
