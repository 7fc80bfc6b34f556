"""The wheel is complete and its commands answer without this repository; a release says what is in it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import yaml

from hotdelta import __version__
from tests.deploy.manifests import ROOT
from tests.deploy.wheel import build_wheel

PACKAGES = ("hotdelta", "exporter", "loader", "server")
COMMANDS = ("hotdelta", "exporter", "server")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its programs, in an environment that has the libraries of this one and nothing of ours but the wheel."""
    environment = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip"),
            *options,
            "install",
            "--no-deps",
            "--no-index",
            "--no-compile",
            str(wheel),
        ],
        check=True,
    )
    packages = environment / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    # A path alone: the .pth of the editable install there is not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


def test_the_wheel_has_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    written = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert packed == written


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_wheel_answers_without_this_repository(
    command: str, installed: Path, tmp_path: Path
) -> None:
    program = installed / "bin" / command
    done = subprocess.run(
        [str(program), "--help"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {command} ")


def test_what_the_commands_import_is_the_wheel(installed: Path, tmp_path: Path) -> None:
    # Found, not imported: loader brings TensorFlow.
    script = f"from importlib.util import find_spec; print(*(find_spec(name).origin for name in {PACKAGES}))"
    done = subprocess.run(
        [str(installed / "bin" / "python"), "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert all(Path(file).is_relative_to(installed) for file in done.stdout.split())


CHANGELOG = "# Changelog\n\n## 1.2.0 - 2030-01-02\n\n### Added\n- This.\n\n## 1.1.0 - 2029-01-02\n\n- That.\n"


def release_notes(root: Path, tag: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "scripts" / "release_notes.py"), tag],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One that can release 1.2.0."""
    for name, text in (
        ("hotdelta/__init__.py", '__version__ = "1.2.0"\n'),
        ("deploy/kubernetes/kustomization.yaml", 'images:\n  - name: hotdelta\n    newTag: "1.2.0"\n'),
        ("CHANGELOG.md", CHANGELOG),
        ("scripts/release_notes.py", (ROOT / "scripts" / "release_notes.py").read_text()),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_release_tells_what_the_changelog_says_of_it(repository: Path) -> None:
    done = release_notes(repository, "v1.2.0")

    assert (done.returncode, done.stdout) == (0, "### Added\n- This.\n")


def test_a_release_of_another_version_than_the_files_say_is_refused(repository: Path) -> None:
    done = release_notes(repository, "v1.1.0")

    assert done.returncode == 1
    assert done.stdout == ""
    assert "hotdelta/__init__.py says 1.2.0, the tag 1.1.0" in done.stderr
    assert "deploy/kubernetes/kustomization.yaml says 1.2.0, the tag 1.1.0" in done.stderr


def test_a_release_that_the_changelog_does_not_know_is_refused(repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- This.\n")
    done = release_notes(repository, "v1.2.0")

    assert done.returncode == 1
    assert "CHANGELOG.md says nothing of 1.2.0" in done.stderr


def test_the_files_of_this_repository_say_one_version() -> None:
    assert " says " not in release_notes(ROOT, __version__).stderr.replace("CHANGELOG.md says", "")


def test_what_the_release_workflow_runs_is_there() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    commands = [
        step["run"].split() for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    makefile = (ROOT / "Makefile").read_text()

    for words in commands:
        for word in words:
            if word.startswith(("scripts/", ".ci/")):
                assert (ROOT / word).is_file(), word
        if "make" in words:
            assert f"\n{words[words.index('make') + 1]}:" in makefile
