"""LitServe: one worker process behind FastAPI. `python -m benchmarks._peers.litserve_server EXPORT PORT BATCH`.

BATCH as for mosec.
"""

import sys
from typing import Any

import litserve
import numpy as np
from fastapi import Request

from benchmarks._peers.model import SHORTEST_WAIT_MS, load_model


class Ranker(litserve.LitAPI):
    def __init__(self, export: str, **batching: Any) -> None:
        super().__init__(api_path="/predict", **batching)
        self._export = export

    def setup(self, device: str) -> None:
        self._predict = load_model(self._export)

    # LitServe asks for the class of a request at run time.
    def decode_request(self, request: Request) -> Any:
        return np.array(request["instances"], np.int64)

    def predict(self, ids: Any) -> Any:
        return self._predict(ids)

    def encode_response(self, output: Any) -> Any:
        return {"predictions": output.tolist()}


class BatchedRanker(Ranker):
    def batch(self, inputs: Any) -> Any:
        self._ends = np.cumsum([len(each) for each in inputs])[:-1]
        return np.concatenate(inputs)

    def unbatch(self, output: Any) -> Any:
        return np.split(output, self._ends)


if __name__ == "__main__":
    export, port, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if batch > 1:
        api: Ranker = BatchedRanker(export, max_batch_size=batch, batch_timeout=SHORTEST_WAIT_MS / 1000)
    else:
        api = Ranker(export)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=10)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning", access_log=False)
