"""What GET /metrics says of requests, and that Prometheus understands it."""

from __future__ import annotations

import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import hotdelta
from hotdelta.chain import Node, Position
from loader.status import LoaderStatus, Quarantined, ServedTable, State
from server.metrics.collector import STATES
from tests.server.conftest import Serve
from tests.server.fake_model import FakeModel
from tests.server.metrics.scrape import scrape
from tests.waiting import wait_until

ROWS = {"instances": [[1, 2], [3, 4], [5, 6]]}
ALONE = {"instances": [[1, 2]]}


def test_predictions_are_counted_by_model_and_protocol(serve: Serve) -> None:
    client = serve(model_name="ranker")
    for _ in range(3):
        assert client.post("/predict", json=ROWS).status_code == 200
    for _ in range(2):
        assert client.post("/v1/models/ranker:predict", json=ROWS).status_code == 200
    tensor = {"name": "ids", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}
    assert client.post("/v2/models/ranker/infer", json={"inputs": [tensor]}).status_code == 200

    told = scrape(client)

    for protocol, count in (("hotdelta", 3), ("tensorflow_serving", 2), ("open_inference", 1)):
        assert told.get("hotdelta_predict_seconds_count", model="ranker", protocol=protocol) == count
        assert told.get("hotdelta_request_seconds_count", protocol=protocol) == count
        assert told.get("hotdelta_requests_total", protocol=protocol, status="200") == count
        seconds = told.get("hotdelta_predict_seconds_sum", model="ranker", protocol=protocol)
        whole = told.get("hotdelta_request_seconds_sum", protocol=protocol)
        assert seconds is not None
        assert whole is not None
        assert 0 < seconds < whole
    assert told["hotdelta_batch_requests_count"] == told["hotdelta_batch_requests_sum"] == 6
    assert told["hotdelta_batch_rows_sum"] == 5 * 3 + 1


def test_errors_are_counted_by_status_and_are_no_predictions(serve: Serve) -> None:
    client = serve()
    assert client.post("/predict", content=b"no JSON").status_code == 400
    assert client.post("/predict", json={"instances": [[1, 100]]}).status_code == 400
    assert client.post("/predict", json={**ALONE, "min_position": "7.7"}).status_code == 409
    assert client.post("/predict", json={**ALONE, "signature_name": "broken"}).status_code == 500
    assert client.post("/v1/models/another:predict", json=ALONE).status_code == 404

    told = scrape(client)

    for protocol, status, count in (
        ("hotdelta", "400", 2),
        ("hotdelta", "409", 1),
        ("hotdelta", "500", 1),
        ("tensorflow_serving", "404", 1),
    ):
        assert told.get("hotdelta_requests_total", protocol=protocol, status=status) == count
    assert told.labels_of("hotdelta_predict_seconds_count") == []


def test_what_clients_write_is_no_label(serve: Serve) -> None:
    client = serve()
    for number in range(20):
        client.post(f"/v1/models/name{number}:predict", json=ALONE)
        client.get(f"/nowhere/{number}")

    told = scrape(client)

    assert "name1" not in told.text
    assert "nowhere" not in told.text


def test_batches_and_the_queue_are_told(serve: Serve, model: FakeModel) -> None:
    client = serve(max_queue=50)
    model.may_answer.clear()
    with ThreadPoolExecutor(5) as clients:
        answers = [clients.submit(client.post, "/predict", json=ALONE)]
        assert model.is_asked.wait(60)
        answers += [clients.submit(client.post, "/predict", json=ROWS) for _ in range(4)]
        wait_until(lambda: scrape(client)["hotdelta_queue_requests"] == 4, "four wait")
        assert scrape(client)["hotdelta_queue_max_requests"] == 50
        model.may_answer.set()
        assert [answer.result().status_code for answer in answers] == [200] * 5

    told = scrape(client)

    assert told["hotdelta_queue_requests"] == 0
    assert (told["hotdelta_batch_requests_count"], told["hotdelta_batch_requests_sum"]) == (2, 5)
    assert told["hotdelta_batch_rows_sum"] == 1 + 4 * 3
    assert told.get("hotdelta_batch_rows_bucket", model="fake", le="8.0") == 1
    assert told.get("hotdelta_batch_rows_bucket", model="fake", le="16.0") == 2


class ModelWithHistory(FakeModel):
    """Grows, and has refused things."""

    def status(self) -> LoaderStatus:
        node = Node(Position(3, 17), "0" * 32)
        return LoaderStatus(
            State.DEGRADED,
            "a delta is damaged",
            is_ready=True,
            model_name="history",
            export_version=4,
            node=node,
            step=1010,
            applied_at=1_700_000_000.0,
            newest_on_disk=Position(3, 20),
            seconds_behind=2.5,
            commits_behind=3,
            tables=(
                ServedTable("users", 90, (4,), "float32", max_rows=100, unknown_keys=7),
                ServedTable("items", 50, (4,), "float32"),
            ),
            quarantined=(
                Quarantined(node, "NaN", "values"),
                Quarantined(node, "a norm", "values"),
                Quarantined(node, "digest", "files"),
            ),
            undo_depth=2,
            undo_bytes=4096,
            undo_budget_bytes=8192,
        )


def test_the_state_of_a_model_is_told(serve: Serve) -> None:
    told = scrape(serve(ModelWithHistory()))

    expected = {
        "hotdelta_ready": 1,
        "hotdelta_export_version": 4,
        "hotdelta_live_run": 3,
        "hotdelta_live_seq": 17,
        "hotdelta_live_step": 1010,
        "hotdelta_newest_run": 3,
        "hotdelta_newest_seq": 20,
        "hotdelta_behind_seconds": 2.5,
        "hotdelta_behind_commits": 3,
        "hotdelta_live_since_timestamp_seconds": 1_700_000_000,
        "hotdelta_pinned": 0,
        "hotdelta_undo_updates": 2,
        "hotdelta_undo_bytes": 4096,
        "hotdelta_undo_budget_bytes": 8192,
        "hotdelta_table_max_rows": 100,
        "hotdelta_unknown_keys_total": 7,
    }
    assert {name: told[name] for name in expected} == expected
    assert told.get("hotdelta_table_rows", model="history", table="users") == 90
    assert told.get("hotdelta_table_rows", model="history", table="items") == 50
    assert told.get("hotdelta_quarantined", model="history", cause="values") == 2
    assert told.get("hotdelta_quarantined", model="history", cause="files") == 1
    state = {state: told.get("hotdelta_update_state", model="history", state=state) for state in STATES}
    assert state == {state: float(state == "degraded") for state in STATES}


def test_nothing_is_told_of_a_model_that_is_not_there(serve: Serve) -> None:
    told = scrape(serve(FakeModel(position=None)))

    assert told["hotdelta_ready"] == 0
    assert told.labels_of("hotdelta_live_seq") == []
    assert told.labels_of("hotdelta_behind_seconds") == []


def test_every_state_of_a_model_is_a_label() -> None:
    assert set(STATES) == {str(state) for state in State}


def test_the_process_and_its_build_are_told(serve: Serve) -> None:
    told = scrape(serve())

    (build,) = told.labels_of("hotdelta_build_info")
    assert build["version"] == hotdelta.__version__
    assert build["tensorflow"]
    assert told["process_start_time_seconds"] > 1_700_000_000
    assert told.get("python_gc_collections_total", generation="2") is not None


def test_openmetrics_is_written_for_those_who_ask_for_it(serve: Serve) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}

    answer = serve().get("/metrics", headers=accept)

    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_a_scrape_beside_predictions_is_whole(serve: Serve) -> None:
    client = serve()
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            client.post("/predict", json=ALONE)

    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(ask)
        for _ in range(20):
            told = scrape(client)
            if told.labels_of("hotdelta_predict_seconds_count"):
                counted = told["hotdelta_predict_seconds_count"]
                last = told.get(
                    "hotdelta_predict_seconds_bucket", model="fake", protocol="hotdelta", le="+Inf"
                )
                assert counted == last
        is_over.set()
        asked.result()


def test_promtool_finds_nothing_to_say(serve: Serve) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it is in Debian's package prometheus (make packages)")
    client = serve(ModelWithHistory())
    client.post("/predict", json=ALONE)

    checked = subprocess.run(
        [promtool, "check", "metrics"], input=client.get("/metrics").content, capture_output=True, check=False
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_clients_that_are_refused_are_counted_by_the_limit(serve: Serve) -> None:
    size = 2**20
    client = serve(max_body_bytes=size, max_buffered_bytes=size)
    buffered = client.app.state.limits.buffered  # type: ignore[attr-defined]
    buffered.take(size)
    assert client.post("/predict", json=ALONE).status_code == 503
    buffered.give_back(size)

    told = scrape(client)

    assert told.get("hotdelta_refused_clients_total", limit="buffered_bytes") == 1
    assert told.get("hotdelta_refused_clients_total", limit="connections") == 0
    assert told.get("hotdelta_requests_total", protocol="hotdelta", status="503") == 1
