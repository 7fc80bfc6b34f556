"""A program: for every call that an arrival makes to the disk, a child that kills itself right after it.

Usage: killed_arrival.py ADDRESS DIRECTORY makes DIRECTORY/1, DIRECTORY/2, ... each from that store, killed
after that many calls, and ends with the first child that survived.
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hotdelta.chain import Kind
from hotdelta.remote.arrivals import fetch_commit
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.stores.opening import open_store
from tests.chain.disks import KillingDisk


def main(address: str, directory: Path) -> None:
    call, status = 0, signal.SIGKILL.value
    while status == signal.SIGKILL:
        call += 1
        child = os.fork()
        if child == 0:
            _arrive(address, directory / str(call), KillingDisk(call))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
    sys.exit(0 if status == 0 else f"a child ended with status {status}")


def _arrive(address: str, run_dir: Path, disk: KillingDisk) -> None:
    store = open_store(address)
    log = CommitLog(store)
    with ThreadPoolExecutor(1) as pool:
        for kind in Kind:
            for position in log.positions_after(kind, None):
                fetch_commit(store, *log.read(kind, position), run_dir, pool=pool, disk=disk)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
