"""docs/tutorial.md, followed from its first line to its last: its commands print what it shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from exporter import export_saved_model
from exporter.arguments import make_parser
from hotdelta.chain import Scanner
from tests.docs.pages import PYTHON, ROOT, Block, blocks_of
from tests.end_to_end.processes import ServerProgram
from tests.waiting import wait_until

PAGE = ROOT / "docs" / "tutorial.md"
ADDRESS = "http://127.0.0.1:8000"
SCRIPT, *MORE_SCRIPTS = (block for block in blocks_of(PAGE) if block.info == PYTHON)


@dataclass(frozen=True)
class Command:
    line: str
    printed: str
    """The first line that the page shows below it, or nothing."""


def commands_of(block: Block) -> Iterator[Command]:
    lines = block.text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("$ "):
            yield Command(line[2:], "" if following.startswith("$ ") else following)


COMMANDS = [command for block in blocks_of(PAGE) for command in commands_of(block)]


@dataclass
class Reader:
    """Does what the page says, in a directory of his own; `answers` are those to his predictions."""

    directory: Path
    server: ServerProgram | None = None
    answers: list[Any] = field(default_factory=list)

    def follow(self, command: Command) -> None:
        program = command.line.split(" ")[0]
        if program == "python":
            self._train()
        else:
            known = {"exporter": self._export, "server": self._serve, "curl": self._ask}
            said = known.get(program, self._run)(command.line)
            if command.printed:
                assert without_figures(said) == without_figures(command.printed), command.line

    def page_in_a_browser(self) -> httpx.Response:
        assert self.server is not None
        return self.server.http.get("/", headers={"Accept": "text/html"})

    def _train(self) -> None:
        """In this process, which has TensorFlow already; a server that is there has what was saved before we go on."""
        scope: dict[str, Any] = {}
        SCRIPT.run(scope, {})
        scope["checkpoint"].close()
        if self.server is not None:
            server, newest = self.server, str(Scanner(Path("run")).scan().manifests[-1].position)
            wait_until(
                lambda: server.http.get("/model/version").json()["position"] == newest, f"{newest} is served"
            )

    def _export(self, line: str) -> str:
        options = make_parser().parse_args(shlex.split(line)[1:])
        path = export_saved_model(
            options.checkpoint_dir, options.export_dir, save_incr_model=options.save_incr_model
        )
        return str(path)

    def _serve(self, line: str) -> str:
        self.server = ServerProgram(*shlex.split(line)[1:], errors=self.directory / "server.err")
        self.server.wait_until_ready()
        return f"listening on {ADDRESS}"

    def _ask(self, line: str) -> str:
        """What curl does, which not every machine has."""
        assert self.server is not None
        _, data, body, url = shlex.split(line)
        assert data == "-d"
        answer = self.server.http.post(url.removeprefix(ADDRESS), content=body).raise_for_status()
        self.answers.append(answer.json())
        return answer.text

    def _run(self, line: str) -> str:
        """The first line that it prints; it succeeds."""
        url = ADDRESS if self.server is None else self.server.url
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["/bin/bash", "-c", line.replace(ADDRESS, url)],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path, "no_proxy": "127.0.0.1"},
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        return done.stdout.partition("\n")[0].replace(url, ADDRESS)


def without_figures(text: str) -> str:
    """Its words: what two machines print alike."""
    return " ".join(re.sub(r"\d+(\.\d+)*(e-?\d+)?", "N", text).split())


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Has followed the page to its end; his server still runs."""
    directory = tmp_path_factory.mktemp("tutorial")
    reader = Reader(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        try:
            for command in COMMANDS:
                reader.follow(command)
            yield reader
        finally:
            if reader.server is not None:
                reader.server.kill()


def test_there_is_one_script_to_save() -> None:
    assert not MORE_SCRIPTS


def test_every_command_of_the_page_does_what_it_says(reader: Reader) -> None:
    before, unknown, after = reader.answers

    assert before["version"]["position"].startswith("1.")
    assert unknown["version"] == before["version"]
    assert after["version"]["position"].startswith("2.")


def test_the_model_has_learnt_who_likes_what(reader: Reader) -> None:
    (liked,), (not_liked,) = reader.answers[0]["predictions"]

    assert liked > 0.5 > not_liked


def test_the_page_for_browsers_is_there(reader: Reader) -> None:
    answer = reader.page_in_a_browser()

    assert answer.status_code == httpx.codes.OK
    assert answer.headers["Content-Type"].startswith("text/html")
