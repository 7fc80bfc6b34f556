"""Which variables there are and what each is: of a model, and of what is on disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hotdelta.io as hio
import hotdelta.keras as hk
from hotdelta.cli import main
from tests.io.models import every_class
from tests.keras.small_models import by_hand, fit


def test_every_variable_of_a_model_is_printed_with_its_class(capsys: pytest.CaptureFixture[str]) -> None:
    found = {info.key: info for info in hio.describe(every_class())}

    printed = capsys.readouterr().out.splitlines()
    classes = {key: str(info.variable_class) for key, info in found.items()}
    assert classes["items/embeddings"] == classes["norm/gamma"] == "parameter"
    assert classes["norm/moving_mean"] == classes["optimizer/velocities/score/kernel"] == "persistable"
    assert classes["drop/seed_generator_0"] == classes["optimizer/learning_rate"] == "persistable"
    assert all(classes[key] == "temporary" for key in classes if key.startswith("metrics/"))
    assert [info.key for info in found.values() if info.is_table] == ["items/embeddings"]
    for key, info in found.items():
        assert any(line.split()[:2] == [key, str(info.variable_class)] for line in printed)


def test_a_frozen_layer_has_no_parameters() -> None:
    model = every_class(is_compiled=False)
    model.get_layer("items").trainable = False

    (table,) = (info for info in hio.describe(model) if info.key == "items/embeddings")

    assert not table.is_parameter
    assert table.is_persistable


@pytest.mark.parametrize("optimizer", [hk.Adam, hk.SGD])
@pytest.mark.parametrize("kind", ["save", "chain"])
def test_what_is_on_disk_is_printed_with_the_classes_it_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, optimizer: type[Any]
) -> None:
    """Whatever the optimizer: plain SGD has no slots that would tell what it trains."""
    model = every_class(is_compiled=False)
    model.get_layer("norm").trainable = False
    model.compile(optimizer(0.1), "mse")
    if kind == "save":
        hio.save_persistables(model, tmp_path)
    else:
        with by_hand(tmp_path) as callback:
            fit(model, 2, callback)
    hio.describe(model)
    live = _lines(capsys.readouterr().out)

    assert main(["describe", str(tmp_path)]) == 0

    printed = capsys.readouterr().out
    deltas = {"save": "0 deltas", "chain": "1 delta"}[kind]
    assert re.match(rf"position 1\.\d+, step \d+: a full and {deltas}\n", printed)
    assert _lines(printed) == {line for line in live if " temporary " not in line}


def _lines(printed: str) -> set[str]:
    """The variables, whatever the width of the columns."""
    return {
        " ".join(line.split()) + " "
        for line in printed.splitlines()
        if " float32 " in line or " int64 " in line
    }


def test_a_directory_without_a_full_is_described_as_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = every_class()
    with by_hand(tmp_path) as callback:
        fit(model, 2, callback)
    for path in tmp_path.glob("model.ckpt-*"):
        path.unlink()

    assert main(["describe", str(tmp_path)]) == 1
    assert "damaged" in capsys.readouterr().err


def test_describing_a_directory_does_not_import_tensorflow(tmp_path: Path) -> None:
    hio.save_params(every_class(), tmp_path)
    describe = "import sys; from hotdelta.cli import main; main(['describe', sys.argv[1]])"
    program = f"{describe}; print('tensorflow' in sys.modules)"

    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.splitlines()[-1] == "False"
