"""The command `server --front-ends 2` with a real trainer and export, through kill -9 of either side and SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from hotdelta.chain import Position
from tests.end_to_end.conftest import FLAGS, Deployment
from tests.end_to_end.probes import PROBES
from tests.end_to_end.processes import Bits, Server, bits_of, question
from tests.waiting import LIMIT_SECONDS, wait_until


@pytest.fixture(scope="module")
def server(deployment: Deployment) -> Iterator[Server]:
    """A second one beside that of the deployment, which is the same without front-ends."""
    started = start(deployment)
    yield started
    if started.process.poll() is None:
        started.kill()


def start(deployment: Deployment) -> Server:
    log = deployment.directory / "front_ends.log"
    server = Server(deployment.export_dir, deployment.checkpoint_dir, log, *FLAGS, "--front-ends", "2")
    server.wait_until_ready()
    return server


def front_ends(server: Server) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children()


def test_answers_are_those_of_a_server_without_them(deployment: Deployment, server: Server) -> None:
    deployment.trainer.train(3, 5)
    position, bits = deployment.trainer.save()
    name = server.version()["model_name"]
    documents = [
        ("/predict", question(PROBES, position)),
        ("/predict", question([(50, 0)], position)),
        ("/predict", {"instances": [{"user": 3, "item": 5}], "min_position": position, "wait_ms": 60_000}),
        ("/predict", {"signature_name": "stage_incremental", "inputs": {"prefix": ["x"]}}),
        (f"/v1/models/{name}:predict", question(PROBES, position)),
        (f"/v1/models/{name}/versions/9:predict", question(PROBES)),
        ("/v2/models/nobody/infer", {}),
        ("/nowhere", {}),
    ]

    assert server.probe(position) == deployment.server.probe(position) == (position, bits)
    for path, document in documents:
        mine, other = (each.http.post(path, json=document) for each in (server, deployment.server))
        assert (mine.status_code, mine.headers.raw, mine.content) == (
            other.status_code,
            other.headers.raw,
            other.content,
        )


@pytest.mark.I2
def test_every_answer_through_them_is_the_model_at_its_position_bit_for_bit(
    deployment: Deployment, server: Server
) -> None:
    """Also while one of them is killed again and again."""
    trainer, stop = deployment.trainer, threading.Event()
    position, bits = trainer.save()
    server.probe(position)
    expected: dict[str, Bits] = {position: bits}
    seen: list[tuple[str, Bits]] = []

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=LIMIT_SECONDS, trust_env=False) as http:
            while not stop.is_set():
                try:
                    answer = http.post("/predict", json=question(PROBES)).raise_for_status()
                except httpx.TransportError:
                    # Its front-end is gone; the next one takes it.
                    continue
                assert answer.json()["version"]["position"] == answer.headers["X-Model-Version"]
                seen.append((answer.headers["X-Model-Version"], bits_of(answer)))

    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(ask) for _ in range(6)]
        try:
            while len(expected) < 60 or len({position for position, _ in seen}) < 10:
                trainer.train(*PROBES[len(expected) % len(PROBES)])
                position, bits = trainer.save()
                expected[position] = bits
                if len(expected) % 20 == 0:
                    front_ends(server)[0].kill()
            server.probe(position)
        finally:
            stop.set()
        for task in asking:
            task.result()

    assert {position for position, _ in seen} <= expected.keys()
    assert all(bits == expected[position] for position, bits in seen)
    assert "a front-end has ended and is started again" in server.said


def test_sigterm_lets_requests_in_flight_finish(deployment: Deployment, server: Server) -> None:
    trainer = deployment.trainer
    position, _ = trainer.save()
    server.probe(position)
    live = Position.parse(position)
    document = question(PROBES) | {"min_position": str(Position(live.run, live.seq + 1)), "wait_ms": 60_000}
    running = front_ends(server)
    before = asked_by_now(server)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            httpx.post, f"{server.url}/predict", json=document, timeout=LIMIT_SECONDS, trust_env=False
        )
        wait_until(lambda: asked_by_now(server) > before, "it is asked")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(server), "nobody else is let in")
        trainer.train(3, 5)
        position, bits = trainer.save()
        assert (answer.result().headers["X-Model-Version"], bits_of(answer.result())) == (position, bits)
    assert server._end() == 0
    assert not any(each.is_running() for each in running)


def asked_by_now(server: Server) -> float:
    """Bytes of requests that are held: of one that waits for its position."""
    return sum(
        float(line.split()[1])
        for line in server.http.get("/metrics").text.splitlines()
        if line.startswith("hotdelta_buffered_bytes ")
    )


def refuses(server: Server) -> bool:
    try:
        httpx.get(f"{server.url}/healthz", trust_env=False)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        return False
    return False


def test_without_the_process_that_has_the_model_they_end(deployment: Deployment) -> None:
    server = start(deployment)
    running = front_ends(server)
    assert len(running) == 2

    os.kill(server.process.pid, signal.SIGKILL)

    wait_until(lambda: not any(is_alive(each) for each in running), "they have ended")
    server._end()


def is_alive(process: psutil.Process) -> bool:
    """One that has ended may wait for somebody to hear of it."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
