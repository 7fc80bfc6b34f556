"""The scripts work in the shells that they are for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.waiting import LIMIT_SECONDS


@pytest.fixture
def script(tmp_path: Path, run: Run, shell: str) -> Path:
    done = run("completion", shell)
    assert done.code == 0
    path = tmp_path / "_hotdelta"
    path.write_text(done.out)
    return path


def completed(shell: str, program: str, directory: Path) -> set[str]:
    done = subprocess.run(
        [shell, "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=True,
        cwd=directory,
        # A shell of nobody's: what is configured in a home would be run, and fish writes to it.
        env={"PATH": os.environ["PATH"], "HOME": str(directory), "LANG": "C.UTF-8"},
    )
    assert done.stderr == ""
    return {line.split("\t")[0] for line in done.stdout.splitlines() if line}


def bash(script: Path, *words: str) -> set[str]:
    program = (
        f"source {script}; COMP_WORDS=(hotdelta {' '.join(map(repr, words))}); COMP_CWORD={len(words)}; "
        'function compopt { :; }; _shtab_hotdelta; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return completed("bash", program, script.parent)


def fish(script: Path, *words: str) -> set[str]:
    return completed("fish", f"source {script}; complete -C 'hotdelta {' '.join(words)}'", script.parent)


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_commands_options_and_directories_are_completed(script: Path, shell: str) -> None:
    complete = {"bash": bash, "fish": fish}[shell]
    (script.parent / "run").mkdir()

    assert complete(script, "ve") == {"verify"}
    assert complete(script, "re") == {"resume", "release", "reload"}
    assert complete(script, "rollback", "--del") == {"--deltas"}
    assert {found.rstrip("/") for found in complete(script, "log", "r")} == {"run"}


@pytest.mark.parametrize("shell", ["zsh"])
def test_zsh_takes_the_script(script: Path, shell: str) -> None:
    """Its completion needs a terminal; here it says by what `hotdelta` is completed."""
    program = (
        f"autoload -Uz compinit; compinit -D -d {script}.dump; "
        f'eval "$(cat {script})"; print -r -- $_comps[hotdelta]; whence -w $_comps[hotdelta]'
    )
    assert completed(shell, program, script.parent) == {"_shtab_hotdelta", "_shtab_hotdelta: function"}
