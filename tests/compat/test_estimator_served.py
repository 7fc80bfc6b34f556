"""From train_and_evaluate in one process to our server over HTTP in another, by deltas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.end_to_end.processes import Program, Server

NUM_IDS = 30


class EstimatorProgram(Program):
    def __init__(self, model_dir: Path, errors: Path) -> None:
        super().__init__("tests.compat.estimator_program", str(model_dir), errors=errors)

    def train(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("train\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._read_line())
        return answer


def ask(server: Server, position: str) -> dict[str, Any]:
    question = {"inputs": {"id": list(range(NUM_IDS))}, "min_position": position, "wait_ms": 10_000}
    answer = server.predict(question).json()
    scores = np.array(answer["outputs"]["score"], np.float32)
    return {"position": answer["version"]["position"], "bits": scores.view(np.uint32).tolist()}


def test_what_an_estimator_trains_and_exports_at_the_end_of_an_evaluation_is_served_by_deltas(
    tmp_path: Path,
) -> None:
    model_dir = tmp_path / "model"
    export_dir = model_dir / "export" / "served"
    trainer = EstimatorProgram(model_dir, tmp_path / "trainer.log")
    server = Server(export_dir, model_dir, tmp_path / "server.log")
    try:
        first = trainer.train()
        server.wait_until_ready()
        assert ask(server, first["position"]) == first
        for _ in range(2):
            trained = trainer.train()
            assert trained["bits"] != first["bits"]
            assert ask(server, trained["position"]) == trained
        assert server.version()["export_version"] == int(next(export_dir.glob("[0-9]*")).name)
        assert server.said.count("loading export") == 1
    finally:
        server.kill()
        trainer.kill()
