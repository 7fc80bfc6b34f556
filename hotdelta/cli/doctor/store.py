"""A store beyond this machine: whether it answers, keeps what chains rest on, and what lies in it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.format.position import Position
from hotdelta.cli.doctor.check import Check, Verdict, failure, ok, warning
from hotdelta.cli.output import format_age
from hotdelta.errors import ManifestError, StoreError
from hotdelta.logs import counted
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from hotdelta.remote.stores.probe import Finding, Fitness, probe

_VERDICTS = {Fitness.KEPT: Verdict.OK, Fitness.DOUBTFUL: Verdict.WARN, Fitness.BROKEN: Verdict.FAIL}


def checks(address: str) -> Iterator[Check]:
    """Raises ConfigurationError for an address that cannot be opened."""
    store = open_store(address)
    try:
        yield from _check_promises(store)
        yield from check_chain(store)
    except StoreError as error:
        yield failure("store", error.message, error.hint)
    finally:
        store.close()


def _check_promises(store: Store) -> Iterator[Check]:
    """Raises StoreError when nobody answers."""
    try:
        findings = list[Finding](probe(store))
    except StoreError as error:
        if error.retryable:
            raise
        advice = (
            f"servers need no more, but trainers do: {error.hint}" if error.hint else "trainers must write"
        )
        yield warning("store", f"nothing can be put there: {error.message}", advice)
        return
    yield ok("store", f"{store.address} answers")
    for finding in findings:
        yield Check(finding.promise, _VERDICTS[finding.fitness], finding.found, finding.advice)


def check_chain(store: Store) -> Iterator[Check]:
    """Raises StoreError."""
    log = CommitLog(store)
    positions = {kind: list(log.positions_after(kind, None)) for kind in Kind}
    if not any(positions.values()):
        yield warning("chain", "nothing was published there yet", "is this the address that the trainer has?")
        return
    found = ", ".join(counted(len(positions[kind]), str(kind)) for kind in Kind)
    if not positions[Kind.FULL]:
        yield failure("chain", f"{found}: nobody can begin without a full", "wait for the next full")
        return
    yield ok("chain", found)
    kind = max(Kind, key=lambda kind: positions[kind][-1:])
    yield _check_newest(log, kind, positions[kind][-1])
    yield _check_hint(log, positions)


def _check_newest(log: CommitLog, kind: Kind, position: Position) -> Check:
    try:
        manifest, _ = log.read(kind, position)
    except (ManifestError, StoreError) as error:
        return failure("newest", error.message, error.hint or "publish it again")
    age = format_age(time.time() - manifest.created_at)
    return ok("newest", f"the {kind} {position}, step {manifest.step:,}, of {age} ago")


def _check_hint(log: CommitLog, positions: dict[Kind, list[Position]]) -> Check:
    head = log.head()
    for kind, told in ((Kind.FULL, head.full), (Kind.DELTA, head.delta)):
        newest = positions[kind][-1] if positions[kind] else None
        if told != newest:
            return warning(
                "hint",
                f"it names the {kind} {told}, and the newest is {newest}",
                "the trainer mends it with its next commit; until then servers find new commits only when they list",
            )
    return ok("hint", "it names the newest commits")
