"""Triton by pytriton: its server in C++, the model in a process beside it. `python -m benchmarks._peers.triton_server
EXPORT PORT`. It batches whatever waits, up to 64 requests of one row, and waits for nobody.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks._peers.model import load_model

MAX_ROWS = 1024


def serve(export: str, port: int) -> None:
    predict = load_model(export)

    @batch
    def infer(ids: Any) -> Any:
        return {"score": predict(ids)}

    config = TritonConfig(
        http_address="127.0.0.1", http_port=port, allow_grpc=False, allow_metrics=False, log_verbose=0
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="ranker",
            infer_func=infer,
            inputs=[Tensor(name="ids", dtype=np.int64, shape=(8,))],
            outputs=[Tensor(name="score", dtype=np.float32, shape=(1,))],
            config=ModelConfig(
                max_batch_size=MAX_ROWS, batcher=DynamicBatcher(max_queue_delay_microseconds=0)
            ),
            strict=False,
        )
        triton.serve()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
