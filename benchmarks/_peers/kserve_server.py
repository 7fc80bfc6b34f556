"""KServe's Python server, its v1 protocol. `python -m benchmarks._peers.kserve_server EXPORT PORT`."""

from __future__ import annotations

import sys
from typing import Any

import kserve
import numpy as np

from benchmarks._peers.model import load_model


class Ranker(kserve.Model):
    def __init__(self, export: str) -> None:
        super().__init__("ranker")
        self._predict = load_model(export)
        self.ready = True

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        return {"predictions": self._predict(np.array(payload["instances"], np.int64)).tolist()}


if __name__ == "__main__":
    server = kserve.ModelServer(
        http_port=int(sys.argv[2]),
        enable_grpc=False,
        workers=1,
        access_log_format=None,
        enable_latency_logging=False,
    )
    server.start([Ranker(sys.argv[1])])
