"""Bearer tokens: how they stand in a header, and who may ask for predictions.

Never tells, by the time that it takes, how much of a guess was right.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from pathlib import Path

from hotdelta.errors import ConfigurationError, UnauthorizedError
from server.watched_files import WatchedFiles

MIN_TOKEN_CHARACTERS = 16
MAKE_ONE = "make one with: openssl rand -hex 32"
_SCHEME = "bearer "


def candidate_of(authorization: str | None) -> bytes:
    """The token that a header `Authorization: Bearer TOKEN` carries; empty when it carries none."""
    given = authorization or ""
    return given[len(_SCHEME) :].strip().encode() if given.lower().startswith(_SCHEME) else b""


def is_any(candidate: bytes, tokens: Iterable[bytes]) -> bool:
    """Whether it is one of them. Every one is compared, so that a match does not answer sooner."""
    return True in [hmac.compare_digest(token, candidate) for token in tokens]


class PredictTokens:
    """Whose requests are answered, in every protocol. `require` belongs to one thread."""

    def __init__(self, path: Path, *, more: Sequence[bytes] = ()) -> None:
        """Lines of tokens; who has one of `more` (an operator) is let in, too. Raises ConfigurationError."""
        self._watched = WatchedFiles([path], lambda: _read(path))
        self._more = tuple(more)

    def require(self, authorization: str | None) -> None:
        """Raises UnauthorizedError."""
        candidate = candidate_of(authorization)
        if not is_any(candidate, self._watched.current() + self._more):
            known = " that is known here, and this one is not" if candidate else ""
            raise UnauthorizedError(
                f"a request needs a token{known}",
                hint="send Authorization: Bearer TOKEN, with a token of the server's --predict-token-file",
            )


def _read(path: Path) -> tuple[bytes, ...]:
    """Blank lines and lines that start with # are skipped. Raises ConfigurationError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--predict-token-file {path} cannot be read: {error}") from error
    found = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    tokens = [(number, line) for number, line in found if line and not line.startswith("#")]
    for number, token in tokens:
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigurationError(
                f"line {number} of {path} is no token: it has blanks, or letters that are not ASCII",
                hint=MAKE_ONE,
            )
        if len(token) < MIN_TOKEN_CHARACTERS:
            raise ConfigurationError(
                f"the token in line {number} of {path} is shorter than {MIN_TOKEN_CHARACTERS} characters",
                hint=MAKE_ONE,
            )
    if not tokens:
        raise ConfigurationError(
            f"--predict-token-file {path} holds no token, so nobody could predict",
            hint=f"write one in each line, or leave the flag out; {MAKE_ONE}",
        )
    return tuple(token.encode() for _, token in tokens)
