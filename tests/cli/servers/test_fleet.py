"""`hotdelta fleet`: what it shows of real servers."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from hotdelta.chain import Position
from tests.cli.conftest import Run
from tests.server.connections import serving
from tests.server.fake_model import FakeModel


def test_servers_are_shown_beside_each_other(run: Run) -> None:
    models = [FakeModel(position=Position(3, seq)) for seq in (17, 17, 16)]
    with ExitStack() as stack:
        urls = ["http://{}:{}".format(*stack.enter_context(serving(model))) for model in models]
        # The same address twice is one server.
        done = run("fleet", *urls, urls[0] + "/")
        document = run("fleet", "--json", *urls).document
    assert done.code == 0
    header, *lines = done.lines
    assert header.split() == ["host", "position", "state", "id", "behind", "standing", "state"]
    assert [line.split()[0] for line in lines] == urls
    assert [(line.split()[1], line.split()[-2]) for line in lines] == [
        ("3.17", "newest"),
        ("3.17", "newest"),
        ("3.16", "behind"),
    ]
    assert document["in_order"]
    assert [server["status"]["position"] for server in document["servers"]] == ["3.17", "3.17", "3.16"]


def test_who_does_not_answer_does_not_hide_the_others(run: Run) -> None:
    with serving(FakeModel(position=Position(3, 17))) as (host, port):
        gone = "http://127.0.0.1:9"
        done = run("fleet", gone, f"http://{host}:{port}")
    assert done.code == 1
    assert "no answer" in done.lines[1]
    assert "is a server running there?" in done.lines[1]
    assert "newest" in done.lines[2]


@pytest.mark.parametrize("arguments", [("not-a-url",), ()])
def test_what_is_no_address_is_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    if arguments:
        assert run("fleet", *arguments).code == 2
    else:
        with pytest.raises(SystemExit) as stopped:
            run("fleet")
        assert stopped.value.code == 2
