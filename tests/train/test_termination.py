"""SIGTERM at the worst moment: nobody knows of it yet, and it must not be lost nor come twice."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from hotdelta.train.termination import TerminationSignal

pytestmark = pytest.mark.I6


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """What the program itself does about SIGTERM: it remembers."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("is_training", [True, False])
def test_signal_that_comes_as_soon_as_it_is_listened_for(
    heard: list[int], is_training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen: Callable[..., object] = signal.signal

    def listen_and_be_told(number: int, handler: object) -> object:
        monkeypatch.setattr(signal, "signal", listen)
        before = listen(number, handler)
        signal.raise_signal(signal.SIGTERM)
        return before

    monkeypatch.setattr(signal, "signal", listen_and_be_told)
    signals = TerminationSignal()
    signals.start(lambda _: is_training)
    assert (signals.is_received, heard) == (is_training, [] if is_training else [signal.SIGTERM])
    signals.stop()
    signals.pass_on_received()
    assert heard == [signal.SIGTERM]
