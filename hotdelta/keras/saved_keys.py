"""Which variables a chain has, before it is verified: an optimizer may have to be built to be loaded."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from hotdelta.chain.plan import ApplyDelta, RestoreFull, plan
from hotdelta.chain.scan import Scanner
from hotdelta.chain.signing import trusted_listing
from hotdelta.errors import HotdeltaError
from hotdelta.train.resume import ResumePoint, ResumeReader


def peek_keys(run_dir: Path) -> Collection[str] | None:
    """The keys of the newest position. None when there is none, or it cannot be read: resuming says so."""
    listing = trusted_listing(run_dir, Scanner(run_dir).scan())
    found = plan(None, listing.manifests, refused=listing.refused)
    fulls = [step.manifest for step in found.steps if isinstance(step, RestoreFull)]
    deltas = [step.manifest for step in found.steps if isinstance(step, ApplyDelta)]
    if not fulls:
        return None
    try:
        with ResumeReader(run_dir, ResumePoint(fulls[0], tuple(deltas[-1:]), ())) as reader:
            return reader.newest_keys()
    except (HotdeltaError, OSError):
        return None
