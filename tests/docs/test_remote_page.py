"""docs/remote.md names every kind of address and every option, and what it says of the layout is so."""

from __future__ import annotations

import pytest

from hotdelta.remote import layout
from hotdelta.remote.stores.address import OPTIONS, SCHEMES
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "remote.md").read_text()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_kind_of_address_is_named(scheme: str) -> None:
    assert f"`{scheme}://" in PAGE


@pytest.mark.parametrize("scheme, option", [(s, o) for s in SCHEMES for o in sorted(OPTIONS[s])])
def test_every_option_is_named_with_whose_it_is(scheme: str, option: str) -> None:
    (row,) = [
        line for line in PAGE.splitlines() if line.startswith("|") and f"`{option}`" in line.split("|")[1]
    ]
    assert f"`{scheme}`" in row.split("|")[2]


@pytest.mark.parametrize(
    "prefix", [layout.CLAIMS, layout.DATA, layout.SCHEMAS, layout.TREES, layout.TREES_DATA]
)
def test_every_folder_is_named(prefix: str) -> None:
    assert prefix in PAGE.partition("## What lies where")[2]
