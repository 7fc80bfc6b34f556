"""`hotdelta verify DIR`: every file against its manifest, manifests against the key, and how far the chain leads."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdelta.chain import Manifest, Node, plan
from hotdelta.cli.history.listing import print_growing
from hotdelta.cli.history.opened_chain import OpenedChain, opened_chain
from hotdelta.cli.output import byte_progress, print_json
from hotdelta.errors import DamagedError
from hotdelta.logs import counted


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and with which file, if it is one."""

    message: str
    path: Path | None = None

    def __str__(self) -> str:
        return self.message if self.path is None else f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`target`: where a server that starts now gets to."""

    intact: tuple[Manifest, ...]
    target: Node | None
    problems: tuple[Problem, ...]

    @property
    def is_in_order(self) -> bool:
        return not self.problems and self.target is not None


def run(options: argparse.Namespace) -> int:
    """1 when anything is damaged, missing or refused."""
    with opened_chain(options.directory) as chain:
        verdict = judge(chain)
    if options.is_json:
        print_json(_document(chain, verdict))
    else:
        _print(chain, verdict)
    return 0 if verdict.is_in_order else 1


def judge(chain: OpenedChain) -> Verdict:
    """Reads every byte of the chain."""
    listing = chain.listing
    problems = [Problem(refused.reason, refused.path) for refused in listing.refused]
    intact = []
    with byte_progress("checked", sum(manifest.total_bytes for manifest in listing.manifests)) as progress:
        for manifest in listing.manifests:
            try:
                chain.verify(manifest, on_read=progress.add)
            except DamagedError as error:
                problems.append(Problem(error.message, error.path))
            else:
                intact.append(manifest)
    way = plan(None, intact, refused=listing.refused)
    if way.problem is not None:
        problems.append(Problem(str(way.problem)))
    return Verdict(tuple(intact), way.target, tuple(problems))


def _print(chain: OpenedChain, verdict: Verdict) -> None:
    manifests = chain.listing.manifests
    print(f"{counted(len(manifests), 'commit')}, {counted(_count_files(chain), 'file')} checked")
    print(
        f"a server that starts now gets to {verdict.target}"
        if verdict.target
        else "a server that starts now has nothing to load"
    )
    print_growing(verdict.intact)
    for problem in verdict.problems:
        print(f"damaged: {problem}", file=sys.stderr)


def _count_files(chain: OpenedChain) -> int:
    return sum(len(manifest.files) for manifest in chain.listing.manifests)


def _document(chain: OpenedChain, verdict: Verdict) -> dict[str, Any]:
    return {
        "directory": chain.place,
        "is_in_order": verdict.is_in_order,
        "newest": str(verdict.target) if verdict.target is not None else None,
        "commits": len(chain.listing.manifests),
        "files": _count_files(chain),
        "bytes": sum(manifest.total_bytes for manifest in chain.listing.manifests),
        "problems": [
            {"file": str(problem.path) if problem.path else None, "reason": problem.message}
            for problem in verdict.problems
        ],
    }
