"""What the sanity gate refuses, and that it never refuses ordinary training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest

from hotdelta.chain import Node, Position, TableRecord, Tracking
from hotdelta.errors import ConfigurationError
from hotdelta.sanity_limits import WINDOW_UPDATES, LimitChange, SanityLimits, SanitySettings, describe_limits
from loader.checks.sanity import Figures, Usual, judge_shares, judge_values
from loader.checks.sanity_figures import CHUNK_VALUES, chunked, measure
from loader.checks.sanity_statistics import Accepted, LargestNorms, SanityStatistics

pytestmark = pytest.mark.I4

LIMITS = SanityLimits()


def figures_of(new: Any, old: Any = None, dtype: str = "float32") -> Figures:
    before = None if old is None else np.asarray(old, dtype)
    return measure(chunked(np.asarray(new, dtype), before))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_not_finite_is_found_wherever_it_is(value: float, dtype: str) -> None:
    rows = np.zeros((70_000, 4))
    rows[69_999, 3] = value
    assert "NaN or infinite" in judge_values(figures_of(rows, np.zeros_like(rows), dtype), LIMITS, None)
    allowing = SanityLimits(is_nonfinite_allowed=True)
    assert judge_values(figures_of(rows, None, dtype), allowing, None) == ""


@pytest.mark.parametrize("value", [1e38, -1e38, 1e25, 2e6])
def test_finite_garbage_is_refused_from_the_first_update_on(value: float) -> None:
    assert "larger than" in judge_values(figures_of([[0.0, value]]), LIMITS, None)
    assert judge_values(figures_of([[0.0, value]]), SanityLimits(max_abs=np.inf), None) == ""


def test_values_whose_squares_overflow_are_measured_too() -> None:
    assert "larger than" in judge_values(figures_of([[0.0, 1e200]], [[0.0, 0.0]], "float64"), LIMITS, None)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_repairs_a_row_is_no_outlier(value: float) -> None:
    figures = figures_of([[1.0, 1.0], [1.0, 2.0]], [[1.0, value], [1.0, 1.0]])
    assert figures.max_change == 1.0
    assert judge_values(figures, LIMITS, Usual(max_norm=1.0, max_change=1.0)) == ""


def test_the_figures_are_those_of_numpy() -> None:
    random = np.random.default_rng(3)
    new, old = random.normal(size=(2, 5000, 64)).astype(np.float32)
    found = measure(chunked(new, old))
    assert found.nonfinite == 0
    assert found.max_abs == np.abs(new).max()
    assert found.max_norm == pytest.approx(np.linalg.norm(new, axis=1).max(), rel=1e-5)
    assert found.max_change == pytest.approx(np.linalg.norm(new - old, axis=1).max(), rel=1e-5)


def test_values_without_axes_and_without_rows_are_measured_too() -> None:
    assert figures_of([7.0]).max_abs == 7.0
    assert figures_of(np.empty((0, 4))) == Figures()


@pytest.mark.parametrize("figures", [Figures(max_norm=5000.0), Figures(max_change=5000.0)])
def test_an_outlier_is_refused_once_there_are_statistics(figures: Figures) -> None:
    usual = Usual(max_norm=3.0, max_change=3.0)
    assert "more than 100 times" in judge_values(figures, LIMITS, usual)
    assert judge_values(figures, LIMITS, None) == ""
    assert judge_values(figures, SanityLimits(outlier_factor=np.inf), usual) == ""


def accept(statistics: SanityStatistics, seq: int, figures: Figures) -> None:
    statistics.add(Accepted(node_at(seq), {"table": figures}))


def node_at(seq: int) -> Node:
    return Node(Position(1, seq), f"{seq:032x}")


def test_statistics_need_some_updates_and_forget_all_of_old_ones_but_their_norms() -> None:
    statistics = SanityStatistics(min_updates=3)
    for seq, size in enumerate((9.0, 1.0, 1.0), 1):
        assert statistics.usual("table") is None
        accept(statistics, seq, Figures(max_norm=size, max_change=size, touched_share=size))
    assert statistics.usual("table") == Usual(9.0, 9.0, 9.0)
    for seq in range(WINDOW_UPDATES):
        accept(statistics, seq + 4, Figures(max_norm=2.0, max_change=2.0, touched_share=2.0))
    assert statistics.usual("table") == Usual(9.0, 2.0, 2.0)


def test_norms_are_forgotten_once_all_that_is_served_was_measured_without_them() -> None:
    statistics = SanityStatistics(min_updates=1)
    accept(statistics, 1, Figures(max_norm=9.0))
    accept(statistics, 2, Figures(max_norm=1e6))
    loaded = LargestNorms({"table": Figures(max_norm=3.0)})
    loaded.add_delta({"table": Figures(max_norm=4.0), "other": Figures(max_norm=1.0)})
    statistics.hold(loaded)
    assert [statistics.usual(key) for key in ("table", "other")] == [Usual(4.0, 0.0), None]
    accept(statistics, 2, Figures(max_norm=7.0))
    assert statistics.usual("table") == Usual(7.0, 0.0), "it is part of what is served again"
    loaded.replace({"table": Figures(max_norm=2.0)})
    statistics.hold(loaded)
    assert statistics.usual("table") == Usual(2.0, 0.0)


def test_of_a_model_that_nobody_has_measured_nothing_is_known() -> None:
    statistics = SanityStatistics(min_updates=1)
    accept(statistics, 1, Figures(max_norm=9.0))
    unknown = LargestNorms({})
    unknown.add_delta({"table": Figures(max_norm=1.0)})
    statistics.hold(unknown)
    assert statistics.usual("table") == Usual(9.0, 0.0)


def test_what_was_accepted_before_is_not_counted_again() -> None:
    statistics = SanityStatistics(min_updates=1)
    accept(statistics, 7, Figures(max_change=1.0))
    accept(statistics, 3, Figures(max_change=50.0))
    assert statistics.usual("table") == Usual(0.0, 1.0)
    assert (statistics.is_new(node_at(7)), statistics.is_new(node_at(8))) == (False, True)


def test_statistics_of_an_earlier_process_count_for_as_long_as_new_ones_would() -> None:
    earlier = SanityStatistics(min_updates=3)
    for seq in range(1, 300):
        accept(earlier, seq, Figures(max_norm=5.0, max_change=7.0, touched_share=0.5))
    statistics = SanityStatistics(earlier.known(), min_updates=3)
    assert statistics.usual("table") == earlier.usual("table") == Usual(5.0, 7.0, 0.5)
    assert statistics.usual("other") is None
    for seq in range(300, 300 + WINDOW_UPDATES):
        assert statistics.usual("table") == Usual(5.0, 7.0, 0.5)
        accept(statistics, seq, Figures(max_norm=1.0, max_change=1.0, touched_share=0.1))
    assert statistics.usual("table") == Usual(5.0, 1.0, 0.1)


def test_a_table_of_single_values_has_a_row_for_each() -> None:
    values = np.full(CHUNK_VALUES + 1, 3.0, np.float32)
    found = measure(chunked(values, values - 1))
    assert (found.max_abs, found.max_norm, found.max_change) == (3.0, 3.0, 1.0)


@pytest.mark.parametrize(
    "tracking, changed, deleted, complaint",
    [
        (Tracking.TOUCHED, 60, 0, "touched"),
        (Tracking.CHANGED, 60, 0, ""),
        (Tracking.TOUCHED, 50, 0, ""),
        (Tracking.CHANGED, 0, 60, "deleted"),
    ],
)
def test_shares_of_rows_are_judged_by_tracking_mode(
    tracking: Tracking, changed: int, deleted: int, complaint: str
) -> None:
    record = TableRecord((100, 4), "float32", tracking, changed, deleted)
    assert complaint in judge_shares(record, SanityLimits(max_touched_share=0.5))
    assert judge_shares(record, SanityLimits(max_touched_share=1.0, max_deleted_share=1.0)) == ""


def test_a_delta_that_touches_far_more_rows_than_usual_is_refused_where_rows_are_recorded() -> None:
    usual = Usual(max_norm=1.0, max_change=1.0, touched_share=0.005)
    whole = TableRecord((10_000, 4), "float32", Tracking.TOUCHED, 10_000)
    assert "more than 100 times the usual 0.50%" in judge_shares(whole, LIMITS, usual)
    for record, known in (
        (whole, None),
        (whole, Usual(1.0, 1.0, touched_share=0.02)),
        (replace(whole, rows_changed=5_000), Usual(1.0, 1.0, touched_share=0.0001)),
        (replace(whole, tracking=Tracking.CHANGED), usual),
    ):
        assert judge_shares(record, LIMITS, known) == ""
    assert judge_shares(whole, SanityLimits(quiet_touched_share=1.0), usual) == ""


def test_limits_are_chosen_by_kind_and_changed_by_key() -> None:
    settings = SanitySettings(by_key={"users": {"max_abs": 1.0}, "bias": {"quiet_norm": 2.0}})
    assert settings.limits_of("users", is_table=True) == SanityLimits(max_abs=1.0)
    assert settings.limits_of("bias", is_table=False) == SanityLimits(max_abs=1e30, quiet_norm=2.0)
    assert settings.limits_of("items", is_table=True) is settings.tables
    assert settings.limits_of("other", is_table=False) is settings.others


def test_an_operator_writes_limits_for_all_tables_or_one_variable() -> None:
    texts = [
        "max_abs=10",
        "users:max_abs=5",
        "a:b/c=d:is_nonfinite_allowed=true",
        "max_abs=20",
        "min_updates=3",
    ]
    settings = SanitySettings.changed_by([LimitChange.parse(text) for text in texts])
    assert settings.tables == SanityLimits(max_abs=20.0)
    assert settings.others == SanitySettings().others
    assert settings.by_key == {"users": {"max_abs": 5.0}, "a:b/c=d": {"is_nonfinite_allowed": True}}
    assert settings.min_updates == 3


@pytest.mark.parametrize(
    "text, problem",
    [
        ("max_abs", "write NAME=VALUE"),
        ("max=1", "there is no limit 'max'"),
        ("users:=1", "there is no limit ''"),
        ("max_abs=large", "not a number"),
        ("max_abs=nan", "give 0 or more"),
        ("users:max_abs=-1", "give 0 or more"),
        ("max_touched_share=20", "from 0 to 1"),
        ("outlier_factor=0.5", "give 1 or more"),
        ("is_nonfinite_allowed=1", "true or false"),
        ("min_updates=2.5", "not a whole number"),
        ("min_updates=1000", "from 1 to 200"),
        ("users:min_updates=5", "without a key"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        LimitChange.parse(text)


def test_limits_given_in_code_are_checked_too() -> None:
    for limits in ({"max_abs": -1.0}, {"outlier_factor": np.nan}, {"max_deleted_share": 2.0}):
        with pytest.raises(ConfigurationError):
            SanitySettings(by_key={"users": limits})


def test_every_limit_is_described_with_its_default() -> None:
    described = describe_limits()
    assert "  max_touched_share=1 " in described
    assert "  is_nonfinite_allowed=false " in described
    assert "  min_updates=20 " in described


def test_the_share_of_deleted_keys_is_that_of_the_parent() -> None:
    assert LimitChange.parse("users:max_deleted_share=0.1").value == 0.1
    assert "  max_deleted_share=0.5 " in describe_limits()
    record = TableRecord((1_000, 2), "float32", Tracking.TOUCHED, 10, 40, rows_in_use=500)
    record = replace(record, keys_live=90, keys_new=50)
    assert judge_shares(record, SanityLimits(max_deleted_share=0.5)) == ""
    assert judge_shares(record, SanityLimits(max_deleted_share=0.49)) == (
        "50.0% of its keys are deleted, more than 49.0%"
    )


def trained_states(optimizer: Any, *, zeros: bool, steps: int = 160) -> Iterator[np.ndarray]:
    """A table on its way to random targets, with learning rates that warm up, jump and decay."""
    random = np.random.default_rng(5)
    start = np.zeros((50, 8)) if zeros else random.uniform(-0.05, 0.05, (50, 8))
    table = keras.Variable(start.astype(np.float32))
    target = random.normal(size=(50, 8)).astype(np.float32)
    optimizer.build([table])
    top = float(optimizer.learning_rate)
    for step in range(steps):
        optimizer.learning_rate = top * (1e-5 if step < 40 else 1.0 if step < 120 else 1e-3)
        gradient = (np.asarray(table) - target) * (random.random((50, 1)) < 0.3)
        optimizer.apply([keras.ops.convert_to_tensor(gradient.astype(np.float32))])
        yield np.array(table)


@pytest.mark.parametrize("zeros", [True, False], ids=["from zeros", "from noise"])
@pytest.mark.parametrize("name, rate", [("Adagrad", 1.0), ("Adam", 0.5), ("SGD", 1.0), ("RMSprop", 0.5)])
def test_ordinary_training_is_never_refused(name: str, rate: float, zeros: bool) -> None:
    statistics = SanityStatistics(min_updates=20)
    old = None
    for seq, new in enumerate(trained_states(getattr(keras.optimizers, name)(rate), zeros=zeros), 1):
        figures = measure(chunked(new, old if old is not None else new * 0))
        assert judge_values(figures, LIMITS, statistics.usual("table")) == ""
        accept(statistics, seq, figures)
        old = new
