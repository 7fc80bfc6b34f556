"""A trainer as a process: told on standard input what to train, it answers with the position and all its bits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hotdelta.chain import Position
from tests.loader.step_model import KeyedStepModel, Trainer, export


def main() -> None:
    run_dir, export_dir = Path(sys.argv[1]), Path(sys.argv[2])
    trainer = Trainer(run_dir, model=KeyedStepModel())
    resumed = trainer.writer.resumed
    if not export_dir.exists():
        export(run_dir, export_dir)
    _say(trainer, resumed.position if resumed else Position(1, 1))
    for line in sys.stdin:
        order = json.loads(line)
        commit = trainer.train_full if order["is_full"] else trainer.train
        _say(trainer, commit(order["ids"]))


def _say(trainer: Trainer, position: Position) -> None:
    bits = {name: content.hex() for name, content in trainer.model.bits().items()}
    status = trainer.writer.status
    told = {"position": str(position), "bits": bits, "failures": status.failures, "error": status.last_error}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
