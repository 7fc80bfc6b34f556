"""A program: for every call that a save makes to the disk, a child that kills itself right after it.

Usage: killed_writer.py DIRECTORY KIND... makes DIRECTORY/1, DIRECTORY/2, ... each with one committed full and a save
that was killed after that many calls, and ends with the first child that survived its save.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hotdelta.chain import Kind
from tests.chain.disks import KillingDisk, PoweredDisk
from tests.chain.model_trainer import ModelTrainer

OLD_ROWS = {1: 10, 2: 20}
CHANGES = {2: 21, 3: 30}


def main(directory: Path, kinds: list[Kind]) -> None:
    call, status = 0, signal.SIGKILL.value
    while status == signal.SIGKILL:
        call += 1
        child = os.fork()
        if child == 0:
            _save(directory / str(call), kinds, kill_after=call)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
    sys.exit(0 if status == 0 else f"a child ended with status {status}")


def _save(run_dir: Path, kinds: list[Kind], *, kill_after: int) -> None:
    trainer = ModelTrainer(run_dir, PoweredDisk())
    trainer.open()
    trainer.save(OLD_ROWS, Kind.FULL)
    trainer.disk = KillingDisk(kill_after)
    trainer.save(CHANGES, *kinds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Kind(kind) for kind in sys.argv[2:]])
