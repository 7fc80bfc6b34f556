"""Tokens as an operator may give them: what cannot be one is refused before a server is asked, or started."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotdelta.cli import main
from hotdelta.cli.output import format_bytes
from hotdelta.errors import ConfigurationError
from server.admin.tokens import AdminTokens

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "there is no token"),
        ("ops:\n", "there is no token"),
        ("first-token\nsecond-token\n", "holds 2 tokens. leave yours alone in it"),
        ("a token with blanks", "holds is no token"),
        ("pässwörter-pässwörter", "holds is no token"),
        ("zero\0byte-zero\0byte", "holds is no token"),
    ],
)
def test_what_is_no_token_is_named_with_its_source(
    tmp_path: Path,
    text: str,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(text)
    assert main(["resume", NOBODY, "--token-file", str(token_file)]) == 2
    from_file = capsys.readouterr().err
    assert problem in from_file
    if "\0" not in text:
        monkeypatch.setenv("HOTDELTA_ADMIN_TOKEN", text)
        assert main(["resume", NOBODY]) == 2
        assert capsys.readouterr().err == from_file.replace(str(token_file), "HOTDELTA_ADMIN_TOKEN")


def test_a_token_that_no_header_carries_in_one_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("ops:pässwörter-pässwörter\n")
    with pytest.raises(ConfigurationError, match=r"the token of 'ops' .* is not ASCII"):
        AdminTokens.read(tmp_path / "tokens")


@pytest.mark.parametrize(
    "count, text", [(999, "999 B"), (999_400, "999 KB"), (999_500, "1 MB"), (999_999_999, "1 GB")]
)
def test_sizes_are_never_written_with_an_exponent(count: int, text: str) -> None:
    assert format_bytes(count) == text
