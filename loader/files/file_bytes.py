"""Bytes of files in memory of our own.

Never through a memory map: a file that somebody truncates meanwhile would end the process with SIGBUS.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# TensorFlow copies what it is fed unless it lies so.
_ALIGNMENT = 64


def aligned(size: int) -> Bytes:
    """Fresh memory that TensorFlow can take as it is."""
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]


def read_into(descriptor: int, memory: npt.NDArray[Any], offset: int) -> bool:
    """Fill the memory with what the file holds from there on; False when it ends before. Raises OSError."""
    done = 0
    while done < len(memory):
        count = os.preadv(descriptor, [memory[done:].data], offset + done)
        if count == 0:
            return False
        done += count
    return True
