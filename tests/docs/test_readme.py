"""The README's own example runs as it is printed, and what it leaves can be exported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporter import export_saved_model
from hotdelta.chain import Scanner

README = Path(__file__).parents[2] / "README.md"


def test_the_quick_start_trains_saves_and_can_be_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    exec(compile(program.replace("1_000_000", "10_000"), str(README), "exec"), scope)  # noqa: S102
    scope["checkpoint"].close()  # type: ignore[attr-defined]
    assert len(Scanner(tmp_path / "run").scan().manifests) >= 2
    assert export_saved_model("run", "export", save_incr_model=True) == Path("export/1")
