"""Who may give orders: bearer tokens with names, read once from a file."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from pathlib import Path

from hotdelta.errors import AdminOffError, ConfigurationError, UnauthorizedError

MIN_TOKEN_CHARACTERS = 16
_LINE = re.compile(r"([A-Za-z0-9_.@-]{1,64}):(\S+)")
_SCHEME = "bearer "


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

    def name_of(self, authorization: str | None) -> str:
        """Raises AdminOffError when there are no tokens, UnauthorizedError when this is none of them."""
        if not self._tokens:
            raise AdminOffError(
                "this server takes no orders: it has no tokens", hint="start it with --admin-token-file"
            )
        given = authorization or ""
        candidate = given[len(_SCHEME) :].strip().encode() if given.lower().startswith(_SCHEME) else b""
        # Every token is compared, so that a match does not answer sooner.
        matches = [name for name, token in self._tokens.items() if hmac.compare_digest(token, candidate)]
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
            hint="make one with: openssl rand -hex 32",
        )
    if not match[2].isascii():
        raise ConfigurationError(
            f"the token of {match[1]!r} in {path} is not ASCII, and clients send headers in many encodings",
            hint="make one with: openssl rand -hex 32",
        )
    if len(match[2]) < MIN_TOKEN_CHARACTERS:
        raise ConfigurationError(
            f"the token of {match[1]!r} in {path} is shorter than {MIN_TOKEN_CHARACTERS} characters",
            hint="make one with: openssl rand -hex 32",
        )
    return match[1], match[2]
