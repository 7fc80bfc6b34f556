"""Copies of the golden chains, and the command in this process: nothing here needs TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotdelta.chain import Kind, directory_of
from hotdelta.chain.format import names
from hotdelta.cli import main
from tests.chain.key_table_chain import COUNTS, INDEX, ROWS, SCHEMA, KeyTableChain
from tests.golden.golden_chains import golden_chain


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_here(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run_here


@pytest.fixture
def forked(tmp_path: Path) -> Path:
    """Run 1 has the positions 1.1 to 1.5; run 2 forked from it at 1.3, and has 2.1 and 2.2."""
    return golden_chain("forked").copy_to(tmp_path)


@pytest.fixture
def keyed(tmp_path: Path) -> Path:
    """With the key table `users/rows`, and a full of the position 2.1."""
    return golden_chain("keyed").copy_to(tmp_path)


@pytest.fixture
def keys(tmp_path: Path) -> KeyTableChain:
    """Position 1.1 is empty, 1.2 has the keys 7 and 8, 1.3 has 9 to 40 as well, and 7 is gone in 1.4."""
    chain = KeyTableChain(tmp_path / "run")
    path = directory_of(chain.run_dir, Kind.DELTA) / names.schema_name(SCHEMA.digest)
    path.write_bytes(SCHEMA.to_json())
    chain.delta([7, 8], 1.0)
    chain.delta(range(8, 41), 2.0)
    bucket = int(np.flatnonzero((chain.table.values[INDEX][:, :8] == 7).any(axis=1))[0])
    emptied = chain.table.values[INDEX][bucket : bucket + 1].copy()
    emptied[0, 8:][emptied[0, :8] == 7] = 0
    chain.link(
        {
            INDEX + names.IDS_SUFFIX: np.array([bucket]),
            INDEX + names.ROWS_SUFFIX: emptied,
            ROWS + names.IDS_SUFFIX: np.zeros(0, np.int64),
            ROWS + names.ROWS_SUFFIX: np.zeros((0, 4), np.float32),
            COUNTS + names.VALUE_SUFFIX: np.zeros((0, 3), np.int64),
            "bias" + names.VALUE_SUFFIX: np.zeros((0, 2), np.float32),
        }
    )
    return chain
