"""Several models in one real server: each follows its own trainer, they come and go, and a label moves between them.

Every variable of these models carries the step that wrote it, and those of `b` are far from those of `a`, so an answer
shows which model each of its values came from.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from hotdelta.chain import Kind, Position, Scanner
from hotdelta.directory_lock import open_locked, unlock
from tests.end_to_end.processes import ServerProgram, connect
from tests.loader.step_model import StepModel, Trainer, export, serving_file
from tests.waiting import LIMIT_SECONDS, wait_until

TOKEN = "0123456789abcdef0123"  # noqa: S105 - opens nothing
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
FAR = 10_000
TOUCHED = list(range(8))
GONE = '"message": "model is gone", "model": "c"'

TABLE = '[models.{name}]\nexport_dir = "{name}/export"\ncheckpoint_dir = "{name}/run"\n'
HEAD = """
admin_token_file = "tokens"
state_dir = "state"
ready_wait_seconds = 1.0
poll_seconds = 0.2
default_model = "a"
[labels]
prod = "a"
never_moved = "a"
"""
STANDING = ("a", "b", "damaged", "locked", "missing", "wide")


@dataclass
class Place:
    """A server with its models and their trainers. `b` trains with steps from FAR on."""

    directory: Path
    server: ServerProgram
    trainers: dict[str, Trainer]
    lock: int = -1
    written: dict[tuple[str, str], float] = field(default_factory=dict)

    def write(self, *names: str, more: str = "") -> None:
        (self.directory / "models.toml").write_text(
            HEAD + "".join(TABLE.format(name=name) for name in names) + more
        )

    def hang_up(self, *names: str, more: str = "") -> None:
        """Tells the server that the file is another one."""
        self.write(*names, more=more)
        self.server.process.send_signal(signal.SIGHUP)

    def names(self) -> set[str]:
        return {model["name"] for model in self.server.http.get("/models").json()["models"]}

    def version(self, name: str) -> Any:
        return self.server.http.get(f"/models/{name}/version").raise_for_status().json()

    def order(self, path: str, document: dict[str, Any] | None = None) -> httpx.Response:
        return self.server.http.post(path, json=document or {}, headers=OPERATOR)

    def train(self, name: str) -> Position:
        """One step of one trainer, and it is served."""
        position = self.commit(name)
        self.wait_for(name, position)
        return position

    def wait_for(self, name: str, position: Position) -> None:
        """Until it is served, however long that takes."""
        wait_until(lambda: self.is_served(name, position), lambda: self.version(name))

    def is_served(self, name: str, position: Position) -> bool:
        answer = ask(self.server.http, name, min_position=str(position), wait_ms=10_000)
        return answer.status_code == httpx.codes.OK and model_of(answer) == name

    def commit(self, name: str) -> Position:
        """One step of one trainer."""
        position = self.trainers[name].train(TOUCHED)
        self.written[name, str(position)] = float(self.trainers[name].step)
        return position

    def wait_for_log(self, text: str, *, times: int = 1) -> None:
        wait_until(lambda: self.server.said.count(text) == times, lambda: f"{text}:\n{self.server.said}")

    def watching(self) -> int:
        """How many models watch their directories: each has a descriptor of its own for that."""
        count = 0
        for path in Path(f"/proc/{self.server.process.pid}/fd").iterdir():
            # A connection may have been closed meanwhile.
            with suppress(FileNotFoundError):
                count += "inotify" in str(path.readlink())
        return count

    def restart(self) -> None:
        self.server.kill()
        self.server = start(self.directory)


def ask(http: httpx.Client, name: str, **more: Any) -> httpx.Response:
    return http.post(f"/models/{name}/predict", json={"inputs": {"ids": TOUCHED}, **more})


def start(directory: Path) -> ServerProgram:
    server = ServerProgram("--config", str(directory / "models.toml"), errors=directory / "server.log")
    wait_until(lambda: server.http.get("/models/a/ready").status_code == 200, lambda: server.said)
    wait_until(lambda: server.http.get("/models/b/ready").status_code == 200, lambda: server.said)
    return server


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("several")
    for name, width in (("a", 4), ("wide", 5)):
        trainer = Trainer(directory / name / "run", model=StepModel(width=width))
        trainer.train(TOUCHED)
        export(directory / name / "run", directory / name / "export")
        trainer.close()
    for name in ("b", "c", "damaged", "locked"):
        shutil.copytree(directory / "a", directory / name)
    damage_a_delta(directory / "damaged" / "run")
    trainers = {name: Trainer(directory / name / "run") for name in ("a", "b")}
    trainers["b"].step = FAR
    (directory / "tokens").write_text(f"alice:{TOKEN}\n")
    standing = Place(directory, None, trainers)  # type: ignore[arg-type]
    standing.write(*STANDING)
    (directory / "state" / "locked").mkdir(parents=True)
    standing.lock = open_locked(directory / "state" / "locked")
    standing.server = start(directory)
    standing.train("a")
    standing.train("b")
    try:
        yield standing
    finally:
        standing.server.kill()
        for trainer in trainers.values():
            trainer.close()


def damage_a_delta(run_dir: Path) -> None:
    """One more delta, of which a byte is wrong: who follows is degraded."""
    trainer = Trainer(run_dir)
    trainer.train(TOUCHED)
    trainer.close()
    newest = [found for found in Scanner(run_dir).scan().manifests if found.kind is Kind.DELTA][-1]
    path = serving_file(run_dir, newest)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


Told = tuple[str, str, float]


class Asked(NamedTuple):
    """What somebody was told, and from when until when he waited for it."""

    told: Told
    start: float
    end: float


def told_by(answer: httpx.Response) -> Told:
    """The model and the position that an answer names, and the step that every value of it is from."""
    assert answer.status_code == 200, answer.text
    document = answer.json()
    outputs, position = document["outputs"], document["version"]["position"]
    values = {value for rows in (outputs["users"], outputs["items"]) for row in rows for value in row}
    (step,) = values | set(outputs["bias"])
    assert answer.headers["X-Model-Version"] == position
    name = answer.headers["X-Model-Name"]
    assert name == ("b" if step > FAR else "a")
    return name, position, step


def model_of(answer: httpx.Response) -> str:
    return told_by(answer)[0]


@contextmanager
def asking(place: Place, name: str, *, clients: int = 4) -> Iterator[Callable[[], list[Asked]]]:
    """Clients that ask all the time; what is yielded tells what they were answered. One that fails fails the test."""
    is_over = threading.Event()
    answered: list[Asked] = []

    def ask_on() -> None:
        with connect(place.server.url) as http:
            while not is_over.is_set():
                begin = time.monotonic()
                told = told_by(ask(http, name))
                answered.append(Asked(told, begin, time.monotonic()))

    with ThreadPoolExecutor(clients) as pool:
        tasks = [pool.submit(ask_on) for _ in range(clients)]

        def tell() -> list[Asked]:
            for task in tasks:
                if task.done() and not is_over.is_set():
                    task.result()
            return list(answered)

        try:
            yield tell
        finally:
            is_over.set()
        for task in tasks:
            task.result(LIMIT_SECONDS)


def test_a_broken_model_takes_nothing_from_those_that_follow(place: Place) -> None:
    for name in ("a", "b"):
        place.train(name)

    assert place.version("a")["update_state"] == place.version("b")["update_state"] == "following"
    wait_until(lambda: place.version("damaged")["update_state"] == "degraded", "it is noticed")
    assert (
        "is not what its manifest says" in str(place.version("damaged"))
        or place.version("damaged")["quarantined"]
    )
    assert place.version("missing")["update_state"] == "waiting"
    assert ask(place.server.http, "missing").status_code == 503
    assert place.server.http.get("/readyz").status_code == 200
    told = place.server.http.get("/readyz").json()["models"]
    assert {name for name, model in told.items() if not model["is_ready"]} == {"locked", "missing"}


def test_one_that_could_not_be_made_is_made_when_its_reason_is_gone(place: Place) -> None:
    refused = ask(place.server.http, "locked")
    assert (refused.status_code, "another server uses the state directory" in refused.text) == (503, True)
    assert place.order("/models/reload").json()["added"] == []
    unlock(place.lock)

    assert place.order("/models/reload").json()["added"] == ["locked"]

    wait_until(lambda: ask(place.server.http, "locked").status_code == 200, "it is loaded")


def test_the_log_says_which_model_a_line_is_about(place: Place) -> None:
    for name in ("a", "b"):
        position = place.train(name)
        place.wait_for_log(f'"model": "{name}", "position": "{position}"')


def test_models_come_and_go_by_the_file_while_the_others_answer_and_follow(place: Place) -> None:
    files = place.watching()
    with asking(place, "a") as answered:
        for number in (1, 2):
            place.hang_up(*STANDING, "c")
            wait_until(lambda: "c" in place.names(), lambda: place.server.said)
            wait_until(lambda: place.server.http.get("/models/c/ready").status_code == 200, "it is loaded")
            assert ask(place.server.http, "c").json()["outputs"]["bias"] == [1.0] * 3
            place.train("a")
            place.hang_up(*STANDING)
            wait_until(lambda: "c" not in place.names(), lambda: place.server.said)
            assert ask(place.server.http, "c").status_code == 404
            place.wait_for_log(GONE, times=number)
            place.train("a")
    assert {asked.told[0] for asked in answered()} == {"a"}
    assert place.watching() == files


@pytest.mark.I9
def test_a_file_with_an_error_changes_nothing_and_the_log_says_what_is_wrong(place: Place) -> None:
    place.hang_up("a", "b", more="[models.d]\n")

    place.wait_for_log("[models.d]: export_dir is missing")
    assert place.names() == set(STANDING)
    assert model_of(ask(place.server.http, "a")) == "a"
    place.write(*STANDING)


@pytest.mark.I2
def test_a_label_moves_under_load_and_every_answer_is_wholly_of_one_model(place: Place) -> None:
    spans: list[tuple[str, float, float]] = []
    with asking(place, "prod", clients=8) as answered:
        for number in range(20):
            name = ("b", "a")[number % 2]
            place.train(name)
            moved = place.order("/labels/prod", {"model": name})
            assert (moved.status_code, moved.json()["survives_restart"]) == (200, True), moved.text
            start, more = time.monotonic(), len(answered()) + 16
            wait_until(lambda more=more: len(answered()) > more, "they have asked")  # type: ignore[misc]
            spans.append((name, start, time.monotonic()))
    for name, start, end in spans:
        # Whoever asks when it has moved gets the other model.
        within = [asked.told[0] for asked in answered() if start < asked.start and asked.end < end]
        assert set(within) <= {name}
    assert {asked.told[0] for asked in answered()} == {"a", "b"}
    # Values, position and model are of one and the same state.
    assert all(place.written[name, position] == step for name, position, step in (a.told for a in answered()))


def test_a_label_moves_to_no_model_that_is_broken_behind_or_of_other_outputs(place: Place) -> None:
    for name, reason in (
        ("damaged", "'damaged' is degraded"),
        ("missing", "'missing' serves nothing yet"),
        ("wide", "'wide' has other outputs in 'serving_default'"),
    ):
        refused = place.order("/labels/never_moved", {"model": name})
        assert (refused.status_code, reason in refused.json()["error"]) == (400, True), refused.text
    assert place.order("/models/b/pin").status_code == 200
    behind = place.commit("b")
    wait_until(lambda: place.version("b")["commits_behind"] == 1, "it knows that it is behind")

    refused = place.order("/labels/never_moved", {"model": "b"})

    assert (refused.status_code, "'b' is held back: pinned at" in refused.json()["error"]) == (400, True)
    assert model_of(ask(place.server.http, "never_moved")) == "a"
    place.order("/models/b/resume")
    place.wait_for("b", behind)


def test_an_order_to_one_model_leaves_the_others_alone(place: Place) -> None:
    earlier, later = place.train("b"), place.train("b")
    newest = place.train("a")

    undone = place.order("/models/b/rollback", {"deltas": 1})

    assert undone.json()["model"] == "b"
    assert undone.json()["position"].startswith(str(earlier))
    assert place.version("a")["position"] == str(newest)
    assert place.version("a")["update_state"] == "following"
    place.train("a")
    assert place.version("b")["position"] == str(earlier)
    place.order("/models/b/resume")
    wait_until(lambda: place.version("b")["position"] == str(later), lambda: place.version("b"))


@pytest.mark.I6
def test_after_kill_9_a_label_is_where_it_was_moved_to(place: Place) -> None:
    place.train("b")
    assert place.order("/labels/prod", {"model": "b"}).status_code == 200

    place.restart()

    assert model_of(ask(place.server.http, "prod")) == "b"
    assert model_of(ask(place.server.http, "a")) == "a"
    place.train("b")
    assert place.order("/labels/prod", {"model": "a"}).json()["before"] == "b"
