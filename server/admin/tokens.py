"""Who may give orders: bearer tokens with names, read once from a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hotdelta.errors import AdminOffError, ConfigurationError, UnauthorizedError
from server.tokens import MAKE_ONE, MIN_TOKEN_CHARACTERS, candidate_of, is_any

_LINE = re.compile(r"([A-Za-z0-9_.@-]{1,64}):(\S+)")


class AdminTokens:
    """Finds the name of a token without telling, by the time it takes, how much of a guess was right."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tokens = {name: token.encode() for name, token in tokens.items()}

    @classmethod
    def read(cls, path: Path | None) -> AdminTokens:
        """Lines of `name:token`; blank lines and lines that start with # are skipped. Raises ConfigurationError."""
        if path is None:
            return cls({})
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--admin-token-file {path} cannot be read: {error}") from error
        tokens: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.startswith("#"):
                name, token = _parse(path, number, line.strip())
                if name in tokens:
                    raise ConfigurationError(
                        f"line {number} of {path} is the second token of {name!r}",
                        hint="give each token a name of its own",
                    )
                tokens[name] = token
        if not tokens:
            raise ConfigurationError(f"--admin-token-file {path} holds no token", hint="write name:token")
        return cls(tokens)

    @property
    def tokens(self) -> tuple[bytes, ...]:
        return tuple(self._tokens.values())

    def name_of(self, authorization: str | None) -> str:
        """Raises AdminOffError when there are no tokens, UnauthorizedError when this is none of them."""
        if not self._tokens:
            raise AdminOffError(
                "this server takes no orders: it has no tokens", hint="start it with --admin-token-file"
            )
        candidate = candidate_of(authorization)
        matches = [name for name, token in self._tokens.items() if is_any(candidate, [token])]
        if not matches:
            known = " that is known here, and this one is not" if candidate else ""
            raise UnauthorizedError(
                f"an order needs a token{known}",
                hint="send Authorization: Bearer TOKEN, with a token of the server's --admin-token-file",
            )
        return matches[0]


def _parse(path: Path, number: int, line: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ConfigurationError(f"line {number} of {path} is not name:token")
    if ":" in match[2]:
        raise ConfigurationError(
            f"the token of {match[1]!r} in {path} has a colon in it",
            hint=MAKE_ONE,
        )
    if not match[2].isascii():
        raise ConfigurationError(
            f"the token of {match[1]!r} in {path} is not ASCII, and clients send headers in many encodings",
            hint=MAKE_ONE,
        )
    if len(match[2]) < MIN_TOKEN_CHARACTERS:
        raise ConfigurationError(
            f"the token of {match[1]!r} in {path} is shorter than {MIN_TOKEN_CHARACTERS} characters",
            hint=MAKE_ONE,
        )
    return match[1], match[2]
