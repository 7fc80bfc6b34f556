"""A server of the usual kind that takes new models: `python -m benchmarks._reloading_server EXPORT_DIR PORT`.

It looks for a newer version of its SavedModel, loads it in a thread while it answers from the old one, and then answers
from the new one.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import tensorflow as tf
import uvicorn
from fastapi import FastAPI

from benchmarks._plain_server import Answer, Question

_LOOK_SECONDS = 0.1


class Newest:
    """The model that answers now."""

    def __init__(self, export_dir: Path) -> None:
        self._export_dir = export_dir
        self.version = 0
        self.model: Any = None
        self._load_newer()

    def follow(self) -> None:
        pause = threading.Event()
        while not pause.wait(_LOOK_SECONDS):
            self._load_newer()

    def _load_newer(self) -> None:
        newest = max(int(path.name) for path in self._export_dir.iterdir())
        if newest > self.version:
            self.model = tf.saved_model.load(str(self._export_dir / str(newest)))
            self.version = newest


def create_app(newest: Newest) -> FastAPI:
    app = FastAPI()

    @app.post("/predict")
    async def predict(question: Question) -> Answer:
        serve = newest.model.signatures["serving_default"]
        scores = serve(ids=tf.constant(question.instances, tf.int64))["score"]
        return Answer(predictions=scores.numpy().tolist())

    @app.get("/version")
    async def version() -> int:
        return newest.version

    return app


if __name__ == "__main__":
    newest = Newest(Path(sys.argv[1]))
    threading.Thread(target=newest.follow, name="follow", daemon=True).start()
    uvicorn.run(create_app(newest), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
