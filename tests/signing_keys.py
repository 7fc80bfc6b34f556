"""The key that tests sign with. The fixtures `key_file` and `has_key` are in tests/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hotdelta.chain.history.signing import KEY_FILE_VARIABLE

KEY = b"k" * 32


@contextmanager
def holding(key_file: Path) -> Iterator[None]:
    """Trainers and readers that are started meanwhile have this key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_FILE_VARIABLE, str(key_file))
        yield
