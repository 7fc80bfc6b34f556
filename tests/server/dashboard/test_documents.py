"""What the page is told: everything once, then what is new; and how fast answers were."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hotdelta.chain import HighestStep, Kind, Manifest, Node, Position
from hotdelta.figures import ANSWER_SECONDS
from loader.lag import TableChange
from loader.status import LoaderStatus, Quarantined, ServedTable, State
from server.dashboard.document import Documents, Told
from server.dashboard.samples import Samples, percentile
from server.model_settings import ModelSettings
from server.models.entry import Entry
from server.models.models import Models
from tests.loader.test_update_figures import lag_at
from tests.server.fake_model import FakeModel


def node(seq: int, fork: str = "a") -> Node:
    return Node(Position(1, seq), fork * 32)


def commit(own: Node, parent: Node | None = None, kind: Kind = Kind.DELTA) -> Manifest:
    return Manifest(
        kind=kind,
        position=own.position,
        state_id=own.state_id,
        parent=parent,
        base=None,
        prefix="x",
        step=own.position.seq,
        created_at=1.0,
        schema="",
        tables={},
        files=(),
        highest_step=HighestStep(),
    )


@dataclasses.dataclass
class ForkedModel(FakeModel):
    """1.1 - 1.2 - 1.3 - 1.4 - 1.5, of which 1.3 is served and 1.4 is bad; and a fork 1.2b that is not followed."""

    def status(self) -> LoaderStatus:
        return LoaderStatus(
            State.DEGRADED,
            "",
            is_ready=True,
            node=node(3, "c"),
            quarantined=(Quarantined(node(4, "d"), "NaN", "values"),),
            tables=(ServedTable("users", 50, (4,), "float32"), ServedTable("items", 10, (4,), "float32")),
        )

    def commits(self, newest: int) -> tuple[Manifest, ...]:
        return (
            commit(node(1, "a"), kind=Kind.FULL),
            commit(node(2, "b"), node(1, "a")),
            commit(node(2, "f"), node(1, "a")),
            commit(node(3, "c"), node(2, "b")),
            commit(node(4, "d"), node(3, "c")),
            commit(node(5, "e"), node(4, "d")),
        )[-newest:]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def models_of(model: FakeModel) -> Models:
    settings = ModelSettings(Path("export"), model_name="forked")
    return Models([Entry(settings, model, max_wait_ms=0)])


def documents_of(models: Models, samples: Samples | None = None) -> Documents:
    return Documents(models, {}, samples or Samples(models), takes_orders=False)


def test_each_commit_says_what_became_of_it() -> None:
    documents = documents_of(models_of(ForkedModel()))

    (model,) = documents.make({})["models"]

    assert [(item["position"], item["state"]) for item in model["commits"]] == [
        ("1.1", "served"),
        ("1.2", "served"),
        ("1.2", "skipped"),
        ("1.3", "live"),
        ("1.4", "values"),
        ("1.5", "waiting"),
    ]


def test_what_was_told_is_not_told_again() -> None:
    model = ForkedModel()
    documents, told = documents_of(models_of(model)), dict[str, Told]()
    model.figures.count(lag_at(2))
    first = documents.make(told)["models"][0]
    assert [update["position"] for update in first["updates"]] == ["1.2"]
    assert "commits" in first

    assert documents.make(told)["models"][0]["updates"] == []
    assert "commits" not in documents.make(told)["models"][0]

    model.figures.count(lag_at(3))
    assert [update["position"] for update in documents.make(told)["models"][0]["updates"]] == ["1.3"]
    # Known better by now: its first answer came.
    model.figures.time(lag_at(3, first_served_at=97.0))
    (again,) = documents.make(told)["models"][0]["updates"]
    assert (again["position"], again["served_ms"]) == ("1.3", 7000.0)


def test_a_second_one_who_looks_is_told_everything() -> None:
    documents = documents_of(models_of(ForkedModel()))
    documents.make({})

    assert len(documents.make({})["models"][0]["commits"]) == 6


def test_a_table_tells_what_the_last_update_touched() -> None:
    model = ForkedModel()
    changes = (TableChange("users", 5, True, 3, 2), TableChange("items", 1))
    model.figures.count(dataclasses.replace(lag_at(2), changes=changes))

    (told,) = documents_of(models_of(model)).make({})["models"]

    assert [(table["key"], table["touched"], table["keys_new"]) for table in told["tables"]] == [
        ("users", 5, 3),
        ("items", 1, None),
    ]


def test_samples_tell_the_rate_and_percentiles_since_the_last_one() -> None:
    clock, models = Clock(), models_of(FakeModel())
    samples = Samples(models, clock)
    (entry,) = models.entries()
    for protocol in ("hotdelta", "open_inference"):
        for _ in range(50):
            entry.plane.figures.observe(protocol, 0.0024)
    clock.now += 2
    samples.take()
    clock.now += 2
    samples.take()

    busy, idle = samples.of("forked")

    assert (busy.at, busy.per_second, busy.waiting) == (1002.0, 50.0, 0)
    median = busy.percentiles[0]
    assert median is not None
    assert 2.0 < median <= 3.0
    assert (idle.per_second, idle.percentiles) == (0.0, (None, None, None))
    told = dict[str, Told]()
    documents = documents_of(models, samples)
    assert [row[0] for row in documents.make(told)["models"][0]["samples"]] == [1002.0, 1004.0]
    assert documents.make(told)["models"][0]["samples"] == []


@pytest.mark.parametrize("share, expected", [(0.5, 1.5), (1.0, 2.0), (0.01, 1.01)])
def test_a_percentile_lies_between_the_bounds_of_its_bucket(share: float, expected: float) -> None:
    """All of them took from 1 to 2 ms, in two buckets."""
    counts = [0] * (len(ANSWER_SECONDS) + 1)
    counts[ANSWER_SECONDS.index(0.0015)] = counts[ANSWER_SECONDS.index(0.002)] = 50

    found = percentile(counts, share)

    assert found is not None
    assert found == pytest.approx(expected)


def test_what_took_longer_than_any_bound_is_the_last_bound() -> None:
    counts = [0] * len(ANSWER_SECONDS) + [1]

    assert percentile(counts, 0.5) == ANSWER_SECONDS[-1] * 1000
