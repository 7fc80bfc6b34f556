"""The command `hotdelta` on a chain that a real trainer wrote."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotdelta.chain import names
from tests.end_to_end.conftest import Deployment


def hotdelta(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "importtime", "-m", "hotdelta.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "tensorflow" not in done.stderr
    errors = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith("import time:")]
    return subprocess.CompletedProcess(command, done.returncode, done.stdout, "".join(errors))


@pytest.fixture
def chain(deployment: Deployment, tmp_path: Path) -> Path:
    """A copy to damage, with at least two deltas that no full stands for."""
    for _ in range(2):
        deployment.trainer.train(3, 5)
        deployment.trainer.save()
    return Path(shutil.copytree(deployment.checkpoint_dir, tmp_path / "run"))


def newest_delta_data(chain: Path) -> Path:
    return max(
        (chain / names.DELTA_DIRECTORY).glob("*.data-00000-of-*"), key=lambda path: path.stat().st_mtime_ns
    )


def test_the_chain_is_listed_newest_last(chain: Path, deployment: Deployment) -> None:
    position, _ = deployment.trainer.save()
    listed = hotdelta("chain", chain)

    lines = listed.stdout.splitlines()
    assert listed.returncode == 0
    assert lines[0].split() == ["kind", "position", "parent", "step", "rows", "bytes", "age"]
    assert lines[1].split()[:4] == ["full", "1.1", "-", "0"]
    assert lines[-3].split()[0:2] == ["delta", position]
    assert lines[-1].startswith("fulls: ")


def test_a_chain_in_order_is_verified_with_the_position_that_a_server_gets_to(
    chain: Path, deployment: Deployment
) -> None:
    position, _ = deployment.trainer.save()
    verified = hotdelta("verify", chain)

    assert (verified.returncode, verified.stderr) == (0, "")
    assert f"a server that starts now gets to {position}" in verified.stdout


def test_a_damaged_file_is_named(chain: Path) -> None:
    data = newest_delta_data(chain)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)

    verified = hotdelta("verify", chain)

    assert verified.returncode == 1
    assert str(data) in verified.stderr
    assert "does not have the digest" in verified.stderr


def test_a_missing_file_and_a_hole_are_named(chain: Path) -> None:
    data = newest_delta_data(chain)
    data.unlink()
    manifests = sorted(
        (chain / names.DELTA_DIRECTORY).glob(f"*{names.MANIFEST_SUFFIX}"),
        key=lambda path: path.stat().st_mtime_ns,
    )
    manifests[-2].unlink()

    verified = hotdelta("verify", chain)

    assert verified.returncode == 1
    assert str(data) in verified.stderr
    assert "hole" in verified.stderr


def test_a_malformed_manifest_is_named_by_both_commands(chain: Path) -> None:
    manifest = next((chain / names.DELTA_DIRECTORY).glob(f"*{names.MANIFEST_SUFFIX}"))
    manifest.write_text("{")

    listed, verified = hotdelta("chain", chain), hotdelta("verify", chain)

    assert (listed.returncode, verified.returncode) == (1, 1)
    assert str(manifest) in listed.stdout
    assert str(manifest) in verified.stderr


@pytest.mark.parametrize(
    "name, problem",
    [("nowhere", "does not exist"), ("file", "is not a directory"), ("empty", "nothing is committed")],
)
def test_a_directory_without_a_chain_is_an_error_that_says_what_to_give(
    tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()

    refused = hotdelta("verify", tmp_path / name)

    assert refused.returncode == 2
    assert refused.stderr.startswith("hotdelta: ")
    assert problem in refused.stderr
