"""A program of its own, because XLA reads its environment once: how often is a model compiled, and by whom?

Prints the number of compiled programs after loading, after the warm-up, and after each request.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROWS, ASKED = 6, (1, 4, 6, 7)


def main() -> None:
    import numpy as np
    import tensorflow as tf

    from exporter.export import export_saved_model
    from loader.model.live_model import LiveModel

    class Compiled(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(tf.ones([50, 4]))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
        def predict(self, ids: Any) -> dict[str, Any]:
            return {"score": self.compiled(tf.gather(self.table, ids))}

        @tf.function(jit_compile=True)
        def compiled(self, rows: Any) -> Any:
            return tf.reduce_sum(rows * 2, axis=1)

    dumped = Path(sys.argv[1])

    def count() -> int:
        return len(list(dumped.glob("*before_optimizations.txt")))

    module = Compiled()
    with tempfile.TemporaryDirectory() as directory:
        path = export_saved_model(module, directory, signatures={"f": module.predict}, tables=["table"])
        counts = []
        live = LiveModel.load(path)
        counts.append(count())
        live.warm_up_for(ROWS)
        counts.append(count())
        for rows in ASKED:
            live.predict("f", {"ids": np.zeros(rows, np.int64)})
            counts.append(count())
        live.close()
    print(json.dumps(counts))


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"--xla_dump_to={sys.argv[1]} --xla_dump_hlo_as_text"
    main()
