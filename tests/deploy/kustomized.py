"""What `kubectl kustomize` makes of the directories of deploy/. A test compares it with the real one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

# Lists that are merged item by item, and the key that tells items apart. All others are replaced.
MERGED_BY = {"containers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath"}


def rendered(directory: Path) -> list[dict[str, Any]]:
    """Without the names and tags of images, which a registry of one's own changes."""
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text())
    documents: list[dict[str, Any]] = []
    for resource in kustomization["resources"]:
        path = directory / resource
        documents += rendered(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    for patch in kustomization.get("patches", ()):
        change = yaml.safe_load(patch.get("patch") or (directory / patch["path"]).read_text())
        (at,) = (number for number, document in enumerate(documents) if _is_of(document, change))
        documents[at : at + 1] = _merged_list([], [_merged(documents[at], change)])
    return documents


def _is_of(document: dict[str, Any], change: dict[str, Any]) -> bool:
    return all(document[key] == change[key] for key in ("apiVersion", "kind")) and (
        document["metadata"]["name"] == change["metadata"]["name"]
    )


def _merged(base: Any, change: Any, key: str = "") -> Any:
    if isinstance(base, dict) and isinstance(change, dict):
        return base | {name: _merged(base.get(name), value, name) for name, value in change.items()}
    if isinstance(change, list) and key in MERGED_BY:
        return _merged_list(base or [], change, MERGED_BY[key])
    return change


def _merged_list(base: Iterable[Any], change: Iterable[Any], key: str = "") -> list[Any]:
    items = {item[key]: item for item in base}
    for item in change:
        name = item[key] if key else ""
        items[name] = _merged(items.get(name), item)
    return [item for item in items.values() if item.get("$patch") != "delete"]
