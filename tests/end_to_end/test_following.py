"""Train a row, see it served: with the real trainer, exporter and server, through kill -9 of either side."""

from __future__ import annotations

import json
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tensorflow as tf
import tritonclient.grpc as rpc_triton
import tritonclient.http as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from hotdelta.chain import Position
from tests.end_to_end.conftest import Deployment
from tests.end_to_end.probes import PROBES
from tests.end_to_end.processes import (
    Bits,
    Server,
    bits_of,
    question,
)
from tests.waiting import LIMIT_SECONDS, wait_until


def test_a_server_that_starts_before_anything_exists_says_so_and_becomes_ready_by_itself(
    deployment: Deployment,
) -> None:
    before = deployment.before

    assert (before["health"], before["state"]) == (200, "waiting")
    assert before["ready"].status_code == 503
    assert before["ready"].json()["reason"]
    assert (before["predict"].status_code, before["predict"].headers["Retry-After"]) == (503, "1")
    assert deployment.server.http.get("/readyz").status_code == 200


def records_of(log: str) -> list[dict[str, Any]]:
    """Every line but one that is being written."""
    return [json.loads(line) for line in log.splitlines(keepends=True) if line.endswith("\n")]


def lines_of(server: Server, position: str) -> list[dict[str, Any]]:
    """What the log says of an update."""
    return [record for record in records_of(server.said) if record.get("position") == position]


def test_a_trained_row_is_served_without_a_reload(deployment: Deployment) -> None:
    trainer, server = deployment.trainer, deployment.server
    trainer.train(3, 5)
    position, before = trainer.save()
    assert server.probe(position) == (position, before)
    # It is counted a moment after it is served.
    wait_until(lambda: bool(lines_of(server, position)), "the update is in the log")
    export_version, updates = server.version()["export_version"], server.version()["updates"]

    trainer.train(3, 5)
    position, after = trainer.save()

    assert after != before
    assert server.probe(position) == (position, after)
    assert server.process.poll() is None
    assert server.version()["export_version"] == export_version
    wait_until(lambda: bool(lines_of(server, position)), "the update is in the log")
    assert server.version()["updates"] == updates + 1
    assert server.said.count("loading export") == 1


def test_clients_of_other_servers_get_the_same_answer_and_its_position(deployment: Deployment) -> None:
    trainer, server = deployment.trainer, deployment.server
    trainer.train(2, 3)
    position, _ = trainer.save()
    server.probe(position)
    name = server.version()["model_name"]
    body = question(PROBES)

    answer = server.http.post(f"/v1/models/{name}:predict", json={**body, "min_position": position})

    (score,) = server.http.post("/predict", json=body).json()["outputs"].values()
    assert answer.json() == {"outputs": score}
    assert answer.headers["X-Model-Version"] == position
    with closing(triton.InferenceServerClient(server.url.removeprefix("http://"))) as client:
        inputs = []
        for column, values in body["inputs"].items():
            tensor = triton.InferInput(column, [len(values)], "INT64")
            inputs.append(tensor.set_data_from_numpy(np.array(values)))
        answer = client.infer(name, inputs, parameters={"min_position": position})
    assert np.array_equal(answer.as_numpy("score").reshape(-1), np.array(score, np.float32).reshape(-1))
    assert answer.get_response()["parameters"]["position"] == position
    state = server.http.get(f"/v1/models/{name}").json()["model_version_status"][0]
    assert (state["version"], state["state"]) == (str(server.version()["export_version"]), "AVAILABLE")


def predict_request(server: Server, **columns: list[int]) -> Any:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = server.version()["model_name"]
    for name, values in columns.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values, tf.int64))
    return request


def test_clients_of_other_servers_see_the_model_move_by_grpc(deployment: Deployment) -> None:
    trainer, server = deployment.trainer, deployment.server
    inputs = question(PROBES)["inputs"]
    request = predict_request(server, **inputs)
    seen = []
    with (
        grpc.insecure_channel(server.rpc_address) as channel,
        rpc_triton.InferenceServerClient(server.rpc_address) as client,
    ):
        predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        for _ in range(2):
            trainer.train(3, 5)
            position, bits = trainer.save()
            wanted = (("min_position", position), ("wait_ms", "60000"))
            answer, call = predictions.Predict.with_call(request, metadata=wanted, timeout=LIMIT_SECONDS)
            tensors = []
            for column, values in inputs.items():
                tensor = rpc_triton.InferInput(column, [len(values)], "INT64")
                tensors.append(tensor.set_data_from_numpy(np.array(values)))
            inferred = client.infer(request.model_spec.name, tensors, parameters={"min_position": position})

            scores = tf.make_ndarray(answer.outputs["score"]).reshape(-1)
            assert scores.view(np.uint32).tolist() == bits
            assert inferred.as_numpy("score").tobytes() == scores.tobytes()
            assert dict(call.trailing_metadata())["x-model-version"] == position
            assert inferred.get_response().parameters["position"].string_param == position
            assert server.probe(position) == (position, bits)
            seen.append((position, bits))
        for name in ("stage_incremental", "apply_staged", "restore_full"):
            request.model_spec.signature_name = name
            with pytest.raises(grpc.RpcError) as refused:
                predictions.Predict(request)
            assert f"there is no signature {name!r}" in refused.value.details()
    assert seen[0] != seen[1]


def test_a_full_in_between_is_no_break(deployment: Deployment) -> None:
    trainer, server = deployment.trainer, deployment.server
    for save in (trainer.save, trainer.save_full, trainer.save):
        trainer.train(4, 5)
        position, expected = save()
        assert server.probe(position) == (position, expected)


@pytest.mark.I2
def test_every_answer_under_load_is_the_model_at_its_position_bit_for_bit(deployment: Deployment) -> None:
    trainer, server = deployment.trainer, deployment.server
    position, bits = trainer.save()
    server.probe(position)
    expected: dict[str, Bits] = {position: bits}
    stop = threading.Event()
    seen: list[tuple[str, int, int]] = []

    def ask(number: int) -> None:
        probe = number % len(PROBES)
        with httpx.Client(base_url=server.url, timeout=LIMIT_SECONDS, trust_env=False) as http:
            while not stop.is_set():
                answer = http.post("/predict", json=question([PROBES[probe]]))
                seen.append((answer.headers["X-Model-Version"], probe, bits_of(answer)[0]))

    def ask_by_grpc(number: int) -> None:
        probe = number % len(PROBES)
        user, item = PROBES[probe]
        request = predict_request(server, user=[user], item=[item])
        with grpc.insecure_channel(server.rpc_address) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            while not stop.is_set():
                answer, call = stub.Predict.with_call(request, timeout=LIMIT_SECONDS)
                score = np.array(answer.outputs["score"].float_val, np.float32)
                seen_at = dict(call.trailing_metadata())["x-model-version"]
                seen.append((seen_at, probe, score.view(np.uint32).item()))

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask_by_grpc if number >= 4 else ask, number) for number in range(8)]
        try:
            # However slow the readers are, they see many positions.
            while len(expected) < 100 or len({position for position, _, _ in seen}) < 10:
                trainer.train(*PROBES[len(expected) % len(PROBES)])
                position, bits = trainer.save()
                expected[position] = bits
            server.probe(position)
        finally:
            stop.set()
        for task in asking:
            task.result()

    assert {position for position, _, _ in seen} <= expected.keys()
    assert all(bits == expected[position][probe] for position, probe, bits in seen)


@pytest.mark.I6
def test_the_server_follows_a_trainer_that_was_killed_and_started_again(deployment: Deployment) -> None:
    trainer, server = deployment.trainer, deployment.server
    position, _ = trainer.save()
    for _ in range(1000):
        trainer.begin({"do": "train", "user": 3, "item": 5, "steps": 1})
        trainer.begin({"do": "save"})
    wait_until(lambda: server.probe(position)[0] != position, "the server has applied one of these deltas")
    trainer.kill()

    deployment.start_trainer()
    start = deployment.trainer.start
    assert (start["resumed"], server.probe(start["position"])) == (True, (start["position"], start["bits"]))
    deployment.trainer.train(3, 5)
    position, expected = deployment.trainer.save()

    assert Position.parse(position).run > 1
    assert server.probe(position) == (position, expected)
    assert server.said.count("loading export") == 1


@pytest.mark.I6
def test_a_server_that_was_killed_catches_up_when_it_starts_again(deployment: Deployment) -> None:
    deployment.server.kill()
    deployment.trainer.train(3, 5)
    deployment.trainer.save()
    deployment.trainer.train(4, 5)
    position, expected = deployment.trainer.save()

    deployment.server = deployment.start_server()
    deployment.server.wait_until_ready()

    assert deployment.server.probe(position) == (position, expected)
    deployment.trainer.train(49, 19)
    position, expected = deployment.trainer.save()
    assert deployment.server.probe(position) == (position, expected)


def line_of_one_more_update(deployment: Deployment) -> dict[str, Any]:
    """Of one that was served soon: an update that nobody asks for is not waited for."""
    server, trainer = deployment.server, deployment.trainer
    trainer.train(0, 0)
    position, expected = trainer.save()
    assert server.probe(position) == (position, expected)
    wait_until(lambda: bool(lines_of(server, position)), "the update is in the log")
    (line,) = lines_of(server, position)
    return line if line["message"] == "update served" else line_of_one_more_update(deployment)


@pytest.mark.I7
def test_one_log_line_for_each_update_tells_every_stage_of_its_lag(deployment: Deployment) -> None:
    stages = {"committed_to_seen_ms", "verify_ms", "stage_ms", "gate_wait_ms", "apply_ms", "first_served_ms"}
    assert stages | {"step", "rows", "bytes"} <= line_of_one_more_update(deployment).keys()


def test_ids_out_of_range_are_refused_and_nothing_else_happens(deployment: Deployment) -> None:
    server = deployment.server
    position, expected = deployment.trainer.save()

    for pair in ((50, 0), (-1, 0), (0, 20)):
        answer = server.http.post("/predict", json=question([(3, 5), pair]))
        assert answer.status_code == 400
        assert "is not in" in answer.json()["error"]
    assert server.probe(position) == (position, expected)


def test_signatures_that_change_the_model_cannot_be_called(deployment: Deployment) -> None:
    for name in ("restore_full", "restore_incremental", "stage_incremental", "apply_staged", "identity"):
        body = {"signature_name": name, "inputs": {"prefix": ["/tmp/x"]}}  # noqa: S108 - never opened
        answer = deployment.server.http.post("/predict", json=body)
        assert (answer.status_code, "there is no signature" in answer.json()["error"]) == (400, True)


def request_in_flight(server: Server, size: int) -> HTTPConnection:
    """The server has begun with it, and waits for its body: it says so."""
    url = httpx.URL(server.url)
    connection = HTTPConnection(url.host, url.port, timeout=LIMIT_SECONDS)
    connection.putrequest("POST", "/predict")
    connection.putheader("Content-Length", str(size))
    connection.putheader("Expect", "100-continue")
    connection.endheaders()
    assert connection.sock.recv(100).startswith(b"HTTP/1.1 100 ")
    return connection


def is_listening(address: str) -> bool:
    url = httpx.URL(address)
    with socket.socket() as probe:
        return probe.connect_ex((url.host, url.port)) == 0


def test_sigterm_lets_requests_in_flight_finish_and_ends_with_exit_code_0(deployment: Deployment) -> None:
    server, trainer = deployment.server, deployment.trainer
    body = json.dumps(question([(0, 0)])).encode()
    position, _ = trainer.save()
    server.probe(position)
    request = predict_request(server, user=[0], item=[0])
    with (
        closing(request_in_flight(server, len(body))) as in_flight,
        grpc.insecure_channel(server.rpc_address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        next_one = Position.parse(position)
        wanted = (("min_position", str(Position(next_one.run, next_one.seq + 1))), ("wait_ms", "60000"))
        call = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict.future(
            request, metadata=wanted, timeout=LIMIT_SECONDS
        )
        # What comes after it on the same connection is answered: so it has been taken.
        assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_listening(server.url), "the server takes no more requests")
        wait_until(lambda: not is_listening(f"grpc://{server.rpc_address}"), "and no more calls")
        trainer.train(0, 0)
        trainer.save()
        assert call.result().model_spec.version.value == 1
        in_flight.send(body)
        assert in_flight.getresponse().status == 200
    assert server._end() == 0

    deployment.server = deployment.start_server()


def test_all_that_a_server_writes_from_its_start_to_ctrl_c_is_json(deployment: Deployment) -> None:
    server = deployment.server
    server.wait_until_ready()
    line_of_one_more_update(deployment)

    server.process.send_signal(signal.SIGINT)
    assert server._stdout.read() == ""
    assert server._end() == 0

    messages = {record["message"] for record in records_of(server.said)}
    assert {"starting", "update served", "serving export", "stopped"} <= messages
    deployment.server = deployment.start_server()
    deployment.server.wait_until_ready()
