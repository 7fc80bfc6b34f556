"""States whose values must not be served: found wanting by the sanity gate, until an operator says otherwise."""

from __future__ import annotations

import logging

from hotdelta.chain import Listing, Manifest, Node, Position
from hotdelta.errors import SanityError
from hotdelta.logs import event

logger = logging.getLogger(__name__)


class Quarantine:
    """Nodes, not files: the full of a quarantined state is as bad as its delta. One thread at a time."""

    def __init__(self) -> None:
        self._judged: dict[Node, tuple[Manifest, str]] = {}

    def add(self, manifest: Manifest, error: SanityError) -> None:
        if manifest.node not in self._judged:
            event(logger, logging.ERROR, "update quarantined", position=manifest.node, reason=error)
        self._judged[manifest.node] = manifest, str(error)

    @property
    def reasons(self) -> dict[Node, str]:
        return {node: reason for node, (_, reason) in self._judged.items()}

    @property
    def nodes(self) -> frozenset[Node]:
        return frozenset(self._judged)

    def release(self, position: Position) -> Node | None:
        """The state that is no longer in quarantine, if one of this position was."""
        node = next((node for node in self._judged if node.position == position), None)
        if node is not None:
            del self._judged[node]
        return node

    def forget_what_is_gone(self, listing: Listing) -> None:
        """Retention took it, or its manifest is another one now: a damaged one that was put right is judged anew."""
        if not self._judged:
            return
        present = {(manifest.node, manifest.kind): manifest for manifest in listing.manifests}
        nodes = {node for node, _ in present}
        self._judged = {
            node: (judged, reason)
            for node, (judged, reason) in self._judged.items()
            if node in nodes and present.get((node, judged.kind), judged) == judged
        }
