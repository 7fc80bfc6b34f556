"""How fast models are served, beside other servers: the same SavedModel, the same questions, answers compared.

`python -m benchmarks.serving [--rounds 3] [--seconds 2] [--peers mosec,kserve] [--chart FILE.svg]`: our server and
the peers are processes on loopback, asked in turn by wrk (gRPC: h2load). Each
peer gets an environment of its own in build/peers, which takes a minute and 1.5 GB when it is not there yet.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._chart import Bar, Group, write_bars
from benchmarks._peers.environments import NotInstalledError, python_with
from benchmarks._server_processes import ServerProcess, free_port
from benchmarks._wire import (
    WireLoad,
    ask_by_h2load,
    ask_by_wrk,
    median_of,
    post,
    require_tools,
    write_requests,
)
from benchmarks.report import Figure, print_report
from benchmarks.served_table import COLUMNS, IDS, Ranker, TrainerProcess
from server.rpc.messages import kind

ROWS = 100_000
LARGE = 256
DIFFERENT_REQUESTS = {1: 1000, LARGE: 50}
OURS = "hotdelta"
_IDLE_SECONDS = 2.0
_JSON = "Content-Type: application/json"
_PREDICT_CALL = "/tensorflow.serving.PredictionService/Predict"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a question is put, and where the scores are in an answer."""

    path: str
    body: Callable[[np.ndarray], Any]
    scores: Callable[[Any], Any]

    def request(self, ids: np.ndarray) -> bytes:
        return post(self.path, json.dumps(self.body(ids)).encode(), _JSON)

    def ask(self, server: ServerProcess, ids: np.ndarray) -> np.ndarray:
        body = json.dumps(self.body(ids)).encode()
        answer = server.ask(self.path, body, {"Content-Type": "application/json"})
        return np.array(self.scores(answer.json()), np.float32).reshape(len(ids), 1)


def _instances(path: str) -> Dialect:
    return Dialect(path, lambda ids: {"instances": ids.tolist()}, lambda answer: answer["predictions"])


def _inference(path: str) -> Dialect:
    return Dialect(
        path,
        lambda ids: {
            "inputs": [
                {
                    "name": "ids",
                    "datatype": "INT64",
                    "shape": list(ids.shape),
                    "data": ids.reshape(-1).tolist(),
                }
            ]
        },
        lambda answer: answer["outputs"][0]["data"],
    )


_PREDICT = _instances("/predict")
_INFERENCE = _inference("/v2/models/ranker/infer")


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that others use. `package`: what is installed for it; None: it is there."""

    key: str
    title: str
    package: str | None
    module: str
    arguments: tuple[str, ...] = ()
    dialect: Dialect = _PREDICT


PEERS = (
    Peer("plain", "FastAPI", None, "benchmarks._plain_server"),
    Peer(
        "mosec", "mosec", "mosec==0.9.8", "benchmarks._peers.mosec_server", ("1",), _instances("/inference")
    ),
    Peer(
        "mosec_64",
        "mosec, batches of 64",
        "mosec==0.9.8",
        "benchmarks._peers.mosec_server",
        ("64",),
        _instances("/inference"),
    ),
    Peer("litserve", "LitServe", "litserve==0.2.19", "benchmarks._peers.litserve_server", ("1",)),
    Peer(
        "litserve_64",
        "LitServe, batches of 64",
        "litserve==0.2.19",
        "benchmarks._peers.litserve_server",
        ("64",),
    ),
    Peer(
        "kserve",
        "KServe",
        "kserve==0.21.0",
        "benchmarks._peers.kserve_server",
        dialect=_instances("/v1/models/ranker:predict"),
    ),
    Peer(
        "triton",
        "Triton (pytriton)",
        "nvidia-pytriton==0.7.0",
        "benchmarks._peers.triton_server",
        dialect=_INFERENCE,
    ),
)


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


@dataclass(frozen=True, slots=True)
class Workload:
    rows: int
    connections: int

    @property
    def name(self) -> str:
        return f"{_counted(self.rows, 'row')}, {_counted(self.connections, 'connection')}"


ONE, MANY, LARGE_ROWS = Workload(1, 1), Workload(1, 32), Workload(LARGE, 8)
WORKLOADS = (ONE, MANY, LARGE_ROWS)

Loads = dict[tuple[str, str], list[WireLoad]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A server that answers, and what it is asked: a way to measure for each name of a workload."""

    server: ServerProcess
    title: str
    ways: Mapping[str, Callable[[int], WireLoad]]

    def measure(self, seconds: int) -> Iterator[tuple[tuple[str, str], WireLoad]]:
        for name, ask in self.ways.items():
            yield (self.title, name), ask(seconds)


class Bench:
    """The servers of one run, each started and compared."""

    def __init__(self, directory: Path, export_dir: Path, run_dir: Path, running: ExitStack) -> None:
        self._directory = directory
        self._export_dir, self._run_dir = export_dir, run_dir
        self._running = running
        self._random = np.random.default_rng(5)
        self._questions = {rows: self._ids(rows) for rows in DIFFERENT_REQUESTS}
        self._scores: dict[int, np.ndarray] = {}
        self.asked: list[Asked] = []
        self.left_out: list[str] = []

    def _ids(self, rows: int) -> list[np.ndarray]:
        return [self._random.integers(0, ROWS, (rows, IDS)) for _ in range(DIFFERENT_REQUESTS[rows])]

    def start_ours(self) -> None:
        port, rpc_port = free_port(), free_port()
        directories = ("--export-dir", str(self._export_dir), "--checkpoint-dir", str(self._run_dir))
        ports = ("--port", str(port), "--grpc-port", str(rpc_port), "--model-name", "ranker")
        server = self._start(
            ServerProcess(OURS, "server.cli", *ports, *directories, port=port, log=self._log(OURS))
        )
        for rows, questions in self._questions.items():
            self._scores[rows] = _PREDICT.ask(server, questions[0])
        self._require_same(server, _INFERENCE)
        ways = self._ways(OURS, server, _PREDICT)
        ways["json tensors"] = self._way(server, _INFERENCE, LARGE_ROWS, "inference")
        ways["binary tensors"] = self._binary_way(server)
        ways["gRPC"] = self._rpc_way(server, rpc_port)
        self._add(Asked(server, OURS, ways))

    def start(self, peer: Peer) -> None:
        """Raises NotInstalledError."""
        port = free_port()
        python = {} if peer.package is None else {"python": python_with(peer.package)}
        arguments = (str(self._export_dir / "1"), str(port), *peer.arguments)
        environment = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
        server = self._start(
            ServerProcess(
                peer.title,
                peer.module,
                *arguments,
                port=port,
                log=self._log(peer.key),
                environment=environment,
                **python,
            )
        )
        self._require_same(server, peer.dialect)
        self._add(Asked(server, peer.title, self._ways(peer.key, server, peer.dialect)))

    def _start(self, server: ServerProcess) -> ServerProcess:
        print(f"  starting {server.name}", flush=True)
        return self._running.enter_context(server)

    def _log(self, key: str) -> Path:
        return self._directory / f"{key}.log"

    def _require_same(self, server: ServerProcess, dialect: Dialect) -> None:
        """Its answer is ours, but for the last bit: sums are taken in another order where more rows share a call."""
        for rows, questions in self._questions.items():
            scores = dialect.ask(server, questions[0])
            if not np.allclose(scores, self._scores[rows], rtol=1e-5, atol=1e-6):
                raise SystemExit(f"{server.name} answers {scores[:3]} where we say {self._scores[rows][:3]}")

    def _ways(
        self, key: str, server: ServerProcess, dialect: Dialect
    ) -> dict[str, Callable[[int], WireLoad]]:
        return {workload.name: self._way(server, dialect, workload, key) for workload in WORKLOADS}

    def _way(
        self, server: ServerProcess, dialect: Dialect, workload: Workload, key: str
    ) -> Callable[[int], WireLoad]:
        requests = [dialect.request(ids) for ids in self._questions[workload.rows]]
        return self._wrk(server, requests, workload, key)

    def _binary_way(self, server: ServerProcess) -> Callable[[int], WireLoad]:
        requests = [_binary_request(ids) for ids in self._questions[LARGE]]
        head, _, body = requests[0].partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        answer = server.ask(_INFERENCE.path, body, headers)
        scores = answer.content[int(answer.headers["Inference-Header-Content-Length"]) :]
        if not np.allclose(np.frombuffer(scores, "<f4").reshape(-1, 1), self._scores[LARGE], rtol=1e-5):
            raise SystemExit("binary tensors bring other answers")
        return self._wrk(server, requests, LARGE_ROWS, "binary")

    def _wrk(
        self, server: ServerProcess, requests: Sequence[bytes], workload: Workload, key: str
    ) -> Callable[[int], WireLoad]:
        file = write_requests(self._directory / f"{key}_{workload.rows}.requests", requests)
        return lambda seconds: ask_by_wrk(server, file, connections=workload.connections, seconds=seconds)

    def _rpc_way(self, server: ServerProcess, port: int) -> Callable[[int], WireLoad]:
        """As many connections as by HTTP, one row, from the client of TensorFlow Serving."""
        message = _predict_message(self._questions[1][0])
        self._require_rpc_answer(port, message)
        file = self._directory / "message"
        file.write_bytes(b"\x00" + len(message).to_bytes(4, "big") + message)
        url = f"http://127.0.0.1:{port}{_PREDICT_CALL}"
        return lambda seconds: ask_by_h2load(server, url, file, connections=MANY.connections, seconds=seconds)

    def _require_rpc_answer(self, port: int, message: bytes) -> None:
        import grpc

        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            answer = channel.unary_unary(_PREDICT_CALL)(message, timeout=10)
        score = kind("tensorflow.serving.PredictResponse").FromString(answer).outputs["score"].float_val
        if not np.allclose(score, self._scores[1].reshape(-1), rtol=1e-5):
            raise SystemExit(f"gRPC answers {list(score)}, and HTTP {self._scores[1]}")

    def idle_cost(self) -> str:
        """What the servers that are not asked take from the one that is."""
        before = [each.server.cpu_seconds() for each in self.asked]
        threading.Event().wait(_IDLE_SECONDS)
        shares = {
            each.title: (each.server.cpu_seconds() - was) / _IDLE_SECONDS
            for each, was in zip(self.asked, before, strict=True)
        }
        most = max(shares, key=shares.__getitem__)
        return (
            f"all of them idle: {sum(shares.values()):.1%} of a core, most of it {most} ({shares[most]:.1%})"
        )

    def _add(self, asked: Asked) -> None:
        # Once before anything is measured, so that nobody pays for a first time.
        for _ in asked.measure(1):
            pass
        self.asked.append(asked)


def _binary_request(ids: np.ndarray) -> bytes:
    content = ids.astype("<i8").tobytes()
    described = {
        "name": "ids",
        "datatype": "INT64",
        "shape": list(ids.shape),
        "parameters": {"binary_data_size": len(content)},
    }
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    headers = (f"Inference-Header-Content-Length: {len(head)}", "Content-Type: application/octet-stream")
    return post(_INFERENCE.path, head + content, *headers)


def _predict_message(ids: np.ndarray) -> bytes:
    request = kind("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "ranker"
    tensor = request.inputs["ids"]
    tensor.dtype = 9
    for size in ids.shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = ids.astype("<i8").tobytes()
    message: bytes = request.SerializeToString()
    return message


def measure(directory: Path, peers: Sequence[Peer], rounds: int, seconds: int) -> tuple[Loads, list[str]]:
    """What was measured of each server and workload in each round, and what is to be said beside it."""
    loads: Loads = defaultdict(list)
    trainer = TrainerProcess(directory, ROWS, Ranker)
    trainer.export()
    trainer.stop()
    with ExitStack() as running:
        bench = Bench(directory, trainer.export_dir, trainer.run_dir, running)
        bench.start_ours()
        for peer in peers:
            try:
                bench.start(peer)
            except NotInstalledError as error:
                bench.left_out.append(f"{peer.title} is left out, since it cannot be installed: {error}")
                print(f"  {bench.left_out[-1]}", flush=True)
        for number in range(rounds):
            print(f"\r  round {number + 1} of {rounds}", end="", flush=True)
            for asked in bench.asked:
                for name, load in asked.measure(seconds):
                    loads[name].append(load)
        print()
        return loads, [*bench.left_out, bench.idle_cost()]


Medians = Mapping[tuple[str, str], WireLoad]


def figures_of(medians: Medians) -> list[Figure]:
    """Each of ours over that of the peer that is best at it."""
    peers = sorted({title for title, _ in medians if title != OURS})

    def over_best(
        workload: Workload, value: Callable[[WireLoad], float], best: Callable[..., float]
    ) -> float:
        return value(medians[OURS, workload.name]) / best(
            value(medians[title, workload.name]) for title in peers
        )

    def over(one: str, other: str) -> float:
        return medians[OURS, one].per_second / medians[OURS, other].per_second

    among_ours = [
        Figure("grpc_over_rest", over("gRPC", MANY.name)),
        Figure("binary_over_json", over("binary tensors", "json tensors")),
    ]
    if not peers:
        return among_ours
    return [
        Figure("rps32_over_best_peer", over_best(MANY, _per_second, max), "at least 2.0"),
        Figure("rps1_over_best_peer", over_best(ONE, _per_second, max), "at least 2.2"),
        Figure("p99_32_over_best_peer", over_best(MANY, _p99, min), "at most 0.9"),
        Figure("rows256_over_best_peer", over_best(LARGE_ROWS, _per_second, max), "at least 3.0"),
        Figure("cpu_per_request_over_best_peer", over_best(MANY, _cpu, min)),
        *among_ours,
    ]


def _per_second(load: WireLoad) -> float:
    return load.per_second


def _p99(load: WireLoad) -> float:
    return load.p99_ms


def _cpu(load: WireLoad) -> float:
    return load.server_cpu_us


def draw(path: Path, medians: Medians) -> None:
    titles = list(dict.fromkeys(title for title, _ in medians))

    def bars(workload: Workload, value: Callable[[WireLoad], float], shown: str) -> list[Bar]:
        found = {title: value(medians[title, workload.name]) for title in titles}
        return [
            Bar(title, found[title], shown.format(found[title]), is_ours=title == OURS) for title in titles
        ]

    groups = [
        Group(f"Requests a second: {each.name}", bars(each, _per_second, "{:,.0f}")) for each in WORKLOADS
    ]
    slowest = Group(f"99 of 100 answers within: {MANY.name}", bars(MANY, _p99, "{:,.1f} ms"))
    cpu = Group(f"Processor time of a request: {MANY.name}", bars(MANY, _cpu, "{:,.0f} us"))
    write_bars(path, "One model, asked of several servers on two cores", [*groups, slowest, cpu])


def _told(name: tuple[str, str], loads: Sequence[WireLoad]) -> str:
    load = median_of(loads)
    spread = f"{min(each.per_second for each in loads):,.0f} to {max(each.per_second for each in loads):,.0f}"
    return (
        f"{name[0]:<24} {name[1]:<24} {load.per_second:>7,.0f} requests/s ({spread})  p50 {load.p50_ms:>7.2f}  "
        f"p99 {load.p99_ms:>7.2f} ms  {load.server_cpu_us:>6,.0f} us of processor each"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [peer.key for peer in PEERS]
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement in a round (default 2)")
    parser.add_argument("--peers", default=",".join(known), help=f"some of {', '.join(known)} (default: all)")
    parser.add_argument("--chart", type=Path, help="draw what was measured into this file (SVG)")
    options = parser.parse_args()
    wanted = [each for each in options.peers.split(",") if each]
    if unknown := sorted(set(wanted) - set(known)):
        parser.error(f"there is no peer {unknown[0]!r}. peers: {', '.join(known)}")
    require_tools()
    peers = [peer for peer in PEERS if peer.key in wanted]
    with tempfile.TemporaryDirectory() as scratch:
        loads, left_out = measure(Path(scratch), peers, options.rounds, options.seconds)
    medians = {name: median_of(of_rounds) for name, of_rounds in loads.items()}
    if options.chart is not None:
        draw(options.chart, medians)
    print_report(
        f"Serving, {IDS} ids of {ROWS:,} x {COLUMNS}, dense {IDS * COLUMNS}-64-1, medians of {options.rounds} "
        f"rounds of {options.seconds} s",
        figures_of(medians),
        [*(_told(name, of_rounds) for name, of_rounds in loads.items()), *left_out],
    )


if __name__ == "__main__":
    main()
