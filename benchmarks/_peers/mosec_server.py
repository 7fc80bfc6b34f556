"""mosec: one worker behind its server in Rust. `python -m benchmarks._peers.mosec_server EXPORT PORT BATCH`.

BATCH 1 does not batch; more lets so many requests share a call. They wait for each other
for a millisecond, the least it takes.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from mosec import Server, Worker
from mosec.errors import ValidationError

from benchmarks._peers.model import SHORTEST_WAIT_MS, load_model

# Workers are started anew, without the arguments of the command line.
EXPORT = "EXPORT"


class Ranker(Worker):
    def __init__(self) -> None:
        self._predict = load_model(os.environ[EXPORT])

    def forward(self, data: Any) -> Any:
        return {"predictions": self._predict(rows_of(data)).tolist()}


class BatchedRanker(Ranker):
    def forward(self, data: Any) -> Any:
        rows = [rows_of(each) for each in data]
        ends = np.cumsum([len(each) for each in rows])[:-1]
        scores = self._predict(np.concatenate(rows))
        return [{"predictions": each.tolist()} for each in np.split(scores, ends)]


def rows_of(body: Any) -> Any:
    try:
        return np.array(body["instances"], np.int64)
    except KeyError as error:
        raise ValidationError("no instances") from error


if __name__ == "__main__":
    export, port, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.environ[EXPORT] = export
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", port, "--timeout", "10000", "--log-level", "warning"]
    server = Server()
    if batch > 1:
        server.append_worker(BatchedRanker, num=1, max_batch_size=batch, max_wait_time=SHORTEST_WAIT_MS)
    else:
        server.append_worker(Ranker, num=1)
    server.run()
