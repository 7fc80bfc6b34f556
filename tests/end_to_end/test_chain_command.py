"""The command `hotdelta` on a chain that a real trainer wrote."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Scanner
from hotdelta.chain.format import names
from hotdelta.check_progress import STEP_BYTES, CheckProgress
from tests.end_to_end.conftest import Deployment
from tests.waiting import LIMIT_SECONDS


def hotdelta(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "importtime", "-m", "hotdelta.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
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


def deltas_of(chain: Path) -> list[str]:
    """The newest last. Not by the times of their files: two commits may fall into one tick of that clock."""
    return [found.prefix for found in Scanner(chain).scan().manifests if found.kind is Kind.DELTA]


def newest_delta_data(chain: Path) -> Path:
    return next((chain / names.DELTA_DIRECTORY).glob(f"{deltas_of(chain)[-1]}.data-00000-of-*"))


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
    (chain / names.DELTA_DIRECTORY / names.manifest_name(deltas_of(chain)[-2])).unlink()

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


def test_a_check_of_many_bytes_says_how_far_it_is() -> None:
    shown: list[tuple[int, int]] = []
    progress = CheckProgress(3 * STEP_BYTES, show=lambda done, total: shown.append((done, total)))
    for _ in range(6):
        progress.add(STEP_BYTES // 2)
    assert shown == [(gigabytes * STEP_BYTES, 3 * STEP_BYTES) for gigabytes in (1, 2, 3)]


STOPPED_WHILE_IT_READS = """
import os, signal, sys
from hotdelta import cli
from hotdelta.chain.history import verification

def stop(content, **options):
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
verification.digest_file = verification.digest_bytes = stop
sys.exit(cli.main(["verify", sys.argv[1]]))
"""


def test_ctrl_c_ends_it_with_a_word(chain: Path) -> None:
    stopped = subprocess.run(
        [sys.executable, "-c", STOPPED_WHILE_IT_READS, str(chain)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert (stopped.returncode, stopped.stdout, stopped.stderr) == (130, "", "hotdelta: stopped\n")
