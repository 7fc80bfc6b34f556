"""Where a manifest may lead: never out of its directory. Each gate, and what happens without it."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hotdelta.chain.format import manifest as manifests
from hotdelta.chain.format import names, untrusted_json
from hotdelta.chain.history import scan
from tests.chaos.conftest import Prepared
from tests.chaos.rig import NEXT, Rig, put
from tests.chaos.spoiled_delta import gets_through, served_after

pytestmark = pytest.mark.I4


def link_out(ready: Rig) -> None:
    """The data file is a symbolic link to a copy outside the directory."""
    path = ready.paths(NEXT)[0]
    path.rename(ready.root / "outside")
    path.symlink_to(ready.root / "outside")


def test_links_out_of_the_directory(until_next: Prepared) -> None:
    outcome = served_after(until_next, link_out)
    outcome.require_before()


def test_when_links_are_followed_what_lies_outside_is_served(
    until_next: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "O_NOFOLLOW", 0)
    gets_through(until_next, link_out)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/b", "..", ".hidden", "a\\x00b", "x" * 300])
def test_names_that_lead_out_of_the_directory(until_next: Prepared, name: str) -> None:
    def spoil(ready: Rig) -> None:
        path = ready.paths(NEXT)[-1]
        text = path.read_text()
        file = ready.commit(NEXT).files[0].name
        path.write_text(text.replace(f'"{file}"', f'"{name}"'))

    outcome = served_after(until_next, spoil)
    outcome.require_before()
    (refused,) = outcome.observed.refused
    assert "manifest" in refused.reason


def lead_out(ready: Rig) -> None:
    """A manifest whose prefix and files lie beside the run directory; everything else of it is right."""
    manifest, paths = ready.commit(NEXT), ready.paths(NEXT)
    outside = ready.root / "outside"
    outside.mkdir()
    for path in paths[:-1]:
        path.rename(outside / path.name)
    away = "../../outside/"
    files = tuple(replace(file, name=away + file.name) for file in manifest.files)
    put(paths[-1], replace(manifest, prefix=away + manifest.prefix, files=files).to_json())


def test_a_prefix_that_leads_out_of_the_directory(until_next: Prepared) -> None:
    outcome = served_after(until_next, lead_out)
    outcome.require_before()
    (refused,) = outcome.observed.refused
    assert "not a plain file name" in refused.reason


def test_when_any_name_will_do_what_lies_outside_is_served(
    until_next: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest_name = names.manifest_name
    monkeypatch.setattr(untrusted_json, "_FILE_NAME", re.compile(".+"))
    monkeypatch.setattr(names, "manifest_name", lambda prefix: manifest_name(Path(prefix).name))
    gets_through(until_next, lead_out)


def bloat(ready: Rig) -> None:
    """A manifest in order, with five million blanks at its end."""
    with ready.paths(NEXT)[-1].open("ab") as file:
        file.write(b" " * 5_000_000)


def test_manifests_that_are_too_large(until_next: Prepared) -> None:
    outcome = served_after(until_next, bloat)
    outcome.require_before()
    (refused,) = outcome.observed.refused
    assert "is larger than 4194304" in refused.reason


def test_with_a_higher_cap_a_larger_manifest_is_read(
    until_next: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (manifests, scan):
        monkeypatch.setattr(module, "MAX_MANIFEST_BYTES", 2**24)
    gets_through(until_next, bloat)
