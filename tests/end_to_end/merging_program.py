"""A process that makes one model of the parts that two trainers have at addresses of their own, line by line.

Usage: merging_program.py MERGED EXPORTS FIRST SECOND. FIRST has the users and the score, SECOND the items.

{"do": "merge", "from": ["1.3", "1.2"]}    these positions of both in one commit of MERGED; answers as trainer_program
{"do": "export"}                           the merged model, which deltas can update, into EXPORTS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras

import hotdelta.io as hio
from exporter import export_saved_model
from exporter.stores import export_into_store
from hotdelta.errors import ConfigurationError
from hotdelta.keras import DeltaCheckpoint
from tests.end_to_end.trainer_program import answer, build_model
from tests.waiting import wait_until

PARTS = (("users/embeddings", "score/kernel", "score/bias"), ("items/embeddings",))


def main(merged: str, exports: str, *sources: str) -> None:
    model = build_model()
    with DeltaCheckpoint(merged, save_secs=None, save_incremental_secs=None) as checkpoint:
        resumed = checkpoint.resume(model)
        answer(checkpoint, model, resumed=resumed is not None)
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "export":
                export_into_store(lambda place, number: export(merged, place, number), exports, None)
                print(json.dumps({}), flush=True)
                continue
            for source, keys, position in zip(sources, PARTS, command["from"], strict=True):
                wait_until(
                    lambda part=(source, keys, position): is_loaded(model, *part),  # type: ignore[misc]
                    f"{position} is not in {source}",
                )
            checkpoint.step()
            checkpoint.save()
            answer(checkpoint, model)


def export(merged: str, directory: Path, version: int) -> Path:
    return export_saved_model(merged, directory, save_incr_model=True, version=version)


def is_loaded(model: keras.Model, source: str, keys: tuple[str, ...], position: str) -> bool:
    """False while the trainer has not published it."""
    try:
        hio.load_vars(model, source, keys, position=position)
    except ConfigurationError as error:
        if "holds no position" not in str(error):
            raise
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
