"""Where the chains are, what is expected of each, and copies of them to work on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

CHAINS = Path(__file__).parent / "chains"

# By key, the digest of a variable's bytes.
Digests = Mapping[str, str]


@dataclass(frozen=True)
class GoldenChain:
    """One chain. `states`: by position, what the variables of its writer were; `newest` is where it ends."""

    name: str
    states: Mapping[str, Digests]
    newest: str
    step: int

    @property
    def directory(self) -> Path:
        return CHAINS / self.name

    @property
    def key_file(self) -> Path | None:
        path = self.directory / "key"
        return path if path.exists() else None

    def copy_to(self, root: Path) -> Path:
        """A directory `run` that may be written to, beside the key and the export if the chain has them.

        A checkout has files of no particular age. Here each manifest is newer than all that is no manifest, so that
        nobody takes the state file for one that stock TensorFlow wrote after the chain.
        """
        shutil.copytree(self.directory, root, dirs_exist_ok=True)
        for path in root.rglob("*"):
            seconds = 2e9 if path.name.endswith(".manifest.json") else 1e9
            os.utime(path, (seconds, seconds))
        return root / "run"


def golden_chain(name: str) -> GoldenChain:
    document = json.loads((CHAINS / name / "expected.json").read_text())
    return GoldenChain(name, document["states"], document["newest"], document["step"])


def write_expected(directory: Path, states: Mapping[str, Digests], *, step: int) -> None:
    document = {"states": states, "newest": list(states)[-1], "step": step}
    (directory / "expected.json").write_text(json.dumps(document, indent=1, sort_keys=False) + "\n")


def digest(value: bytes) -> str:
    return blake3(value).hexdigest(length=8)


def digests(values: Mapping[str, bytes]) -> Digests:
    return {key: digest(value) for key, value in sorted(values.items())}


def digests_of_arrays(arrays: Iterable[tuple[str, Any]]) -> Digests:
    return digests({key: np.asarray(array).tobytes() for key, array in arrays})
