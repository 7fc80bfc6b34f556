"""What the comparison with other servers says of what it measured (benchmarks.serving)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._wire import WireLoad, post, write_requests
from benchmarks.serving import LARGE_ROWS, MANY, ONE, OURS, draw, figures_of

Medians = dict[tuple[str, str], WireLoad]


@pytest.fixture
def medians() -> Medians:
    """Of us and two peers, of which each is the better one at something."""
    of_peers = {
        ("quick", ONE.name): WireLoad(1000, 1.0, 2.0, 100),
        ("quick", MANY.name): WireLoad(1000, 1.0, 8.0, 100),
        ("quick", LARGE_ROWS.name): WireLoad(100, 1.0, 2.0, 900),
        ("steady", ONE.name): WireLoad(500, 1.0, 2.0, 100),
        ("steady", MANY.name): WireLoad(4000, 1.0, 4.0, 400),
        ("steady", LARGE_ROWS.name): WireLoad(200, 1.0, 2.0, 900),
    }
    ours = {
        ONE.name: WireLoad(3000, 1.0, 2.0, 50),
        MANY.name: WireLoad(8000, 1.0, 2.0, 50),
        LARGE_ROWS.name: WireLoad(600, 1.0, 2.0, 300),
        "json tensors": WireLoad(500, 1.0, 2.0, 300),
        "binary tensors": WireLoad(1000, 1.0, 2.0, 150),
        "gRPC": WireLoad(2000, 1.0, 2.0, 200),
    }
    return {**of_peers, **{(OURS, name): load for name, load in ours.items()}}


def test_each_figure_is_over_the_peer_that_is_best_at_it(medians: Medians) -> None:
    assert {figure.name: figure.value for figure in figures_of(medians)} == {
        "rps32_over_best_peer": 2.0,
        "rps1_over_best_peer": 3.0,
        "p99_32_over_best_peer": 0.5,
        "rows256_over_best_peer": 3.0,
        "cpu_per_request_over_best_peer": 0.5,
        "grpc_over_rest": 0.25,
        "binary_over_json": 2.0,
    }


def test_without_a_peer_only_ours_is_compared_with_ours(medians: Medians) -> None:
    ours = {name: load for name, load in medians.items() if name[0] == OURS}

    assert [figure.name for figure in figures_of(ours)] == ["grpc_over_rest", "binary_over_json"]


def test_the_chart_shows_what_was_measured(medians: Medians, tmp_path: Path) -> None:
    draw(tmp_path / "chart.svg", medians)

    drawn = (tmp_path / "chart.svg").read_text()
    assert all(shown in drawn for shown in ("hotdelta", "steady", "8,000", "4.0 ms", "50 us"))


def test_what_wrk_is_given_can_be_taken_apart_again(tmp_path: Path) -> None:
    requests = [post("/predict", b'{"instances":[[1]]}', "Content-Type: application/json"), b"\n\x00\n"]

    written = write_requests(tmp_path / "requests", requests).read_bytes()

    found = []
    while written:
        size, _, written = written.partition(b"\n")
        found.append(written[: int(size)])
        written = written[int(size) :]
    assert found == requests
