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
        self._reasons: dict[Node, str] = {}

    def add(self, manifest: Manifest, error: SanityError) -> None:
        if manifest.node not in self._reasons:
            event(logger, logging.ERROR, "update quarantined", position=manifest.node, reason=error)
        self._reasons[manifest.node] = str(error)

    @property
    def reasons(self) -> dict[Node, str]:
        return dict(self._reasons)

    @property
    def nodes(self) -> frozenset[Node]:
        return frozenset(self._reasons)

    def release(self, position: Position) -> Node | None:
        """The state that is no longer in quarantine, if one of this position was."""
        node = next((node for node in self._reasons if node.position == position), None)
        if node is not None:
            del self._reasons[node]
        return node

    def forget_vanished(self, listing: Listing) -> None:
        """Retention took it: it cannot come back."""
        if self._reasons:
            present = {manifest.node for manifest in listing.manifests}
            self._reasons = {node: text for node, text in self._reasons.items() if node in present}
