"""A running server: whether it answers, follows, and takes what is committed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import hotdelta
from hotdelta.cli.doctor.check import Check, failure, ok, warning
from hotdelta.cli.servers.http import ServerHttp
from hotdelta.cli.servers.status import Status, open_server, read_models, read_status, show_behind
from hotdelta.errors import HotdeltaError
from hotdelta.replicas import find_troubles

_MAX_SHOWN = 3


def checks(url: str, options: argparse.Namespace) -> Iterator[Check]:
    with open_server(url, options) as server:
        try:
            models = [options.model] if options.model is not None else _names(server)
            states = [read_status(server, model) for model in models]
        except HotdeltaError as error:
            yield failure("server", error.message, error.hint)
            return
        yield check_version(server)
        yield check_health(server)
    for model, status in zip(models, states, strict=True):
        for check in check_model(status, model):
            yield check if len(models) == 1 else replace(check, name=f"{model}: {check.name}")


def _names(server: ServerHttp) -> list[str | None]:
    """None for the only model, which may have no name yet."""
    names: list[str | None] = [item["name"] for item in read_models(server)]
    return names if len(names) > 1 else [None]


def check_model(status: Status, model: str | None = None) -> Iterator[Check]:
    """`model`: what orders have to name."""
    named = "" if model is None else f" --model {model}"
    yield check_serving(status)
    yield check_following(status, named)
    for trouble in find_troubles(status):
        yield warning("news", trouble, "it goes on serving what it has; what is newer it cannot know")
    yield from check_commits(status, named)
    yield from check_orders(status)


def check_version(server: ServerHttp) -> Check:
    found = server.get("/").document.get("version")
    if found == hotdelta.__version__:
        return ok("server", f"hotdelta {found} at {server.url}")
    return warning(
        "server",
        f"hotdelta {found} at {server.url}, and this is {hotdelta.__version__}",
        "what one of them writes the other may not read: upgrade the older one",
    )


def check_health(server: ServerHttp) -> Check:
    document = server.get("/healthz").document
    dead = [name for name, is_alive in document.items() if is_alive is False]
    if dead:
        return failure("health", f"not alive: {', '.join(dead)}", "restart the server; its log says why")
    return ok("health", "predictions and updates are alive")


def check_serving(status: Status) -> Check:
    if not status.get("is_ready"):
        return failure(
            "serving",
            f"nothing yet: {status.get('reason') or status['update_state']}",
            "see GET /readyz, and its log",
        )
    what = f"{status.get('model_name') or 'a model'}, version {status.get('export_version')}"
    if status.get("takes_deltas") is False:
        return warning(
            "serving",
            f"{what}, which takes no deltas",
            "export with --save-incr-model to have it updated by deltas",
        )
    return ok("serving", f"{what}, at {status.get('position') or 'no position'}")


def check_following(status: Status, named: str) -> Check:
    state, reason = status["update_state"], status.get("reason")
    found = f"{state}, {show_behind(status)} behind"
    if state == "degraded":
        return failure(
            "updates",
            f"{found}: {reason}",
            f"see: hotdelta log URL{named}, and hotdelta verify DIR where it reads",
        )
    if state == "pinned":
        return warning(
            "updates",
            f"pinned at {status.get('pinned')}, {show_behind(status)} behind",
            f"hotdelta resume URL{named}",
        )
    if state == "waiting" and reason:
        return warning(
            "updates",
            f"{found}: {reason}",
            "is its checkpoint directory there, and is a trainer writing to it?",
        )
    return ok("updates", found)


def check_commits(status: Status, named: str) -> Iterator[Check]:
    quarantined, refused = status.get("quarantined") or (), status.get("refused") or ()
    undone = [item for item in quarantined if item.get("cause") == "rolled_back"]
    bad = [item for item in quarantined if item.get("cause") != "rolled_back"]
    if bad:
        advice = f"a later full heals it; if it is meant to be so: hotdelta release URL POSITION{named}"
        yield warning("quarantine", _shown(bad), advice)
    if undone:
        yield warning("rolled back", _shown(undone), f"to take them again: hotdelta resume URL{named}")
    if refused:
        shown = "; ".join(f"{item['file']}: {item['reason']}" for item in refused[:_MAX_SHOWN])
        yield warning("manifests", shown, "see: hotdelta log DIR")
    if not quarantined and not refused:
        yield ok("commits", "none is quarantined or refused")


def _shown(quarantined: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{item['position']}: {item['reason']}" for item in quarantined[:_MAX_SHOWN])


def check_orders(status: Status) -> Iterator[Check]:
    if status.get("orders_survive_restart") is False:
        yield warning("orders", "a restart would forget them", "start the server with --state-dir")
