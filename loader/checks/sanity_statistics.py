"""What the updates that were accepted looked like, so that the next one can be compared with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from hotdelta.chain import Node, Position
from hotdelta.sanity_limits import WINDOW_UPDATES
from loader.checks.sanity import Figures, Usual


@dataclass(frozen=True, slots=True)
class Accepted:
    """The figures of each variable of an update, and the state that it leads to, over how many positions."""

    node: Node
    figures: Mapping[str, Figures]
    positions: int = 1


@dataclass(frozen=True, slots=True)
class Summary:
    """What so many recent updates of one variable had in common."""

    updates: int
    usual: Usual


# Of states that are refused one after the other only the newest ones can matter again.
MAX_REFUSED = 1000

_NOTHING = Summary(0, Usual(0.0, 0.0))


@dataclass(frozen=True, slots=True)
class KnownUpdates:
    """Statistics as they survive a restart: of every variable, up to a position, and the states that were refused."""

    until: Position | None = None
    variables: Mapping[str, Summary] = field(default_factory=dict)
    refused: tuple[Node, ...] = ()


class LargestNorms:
    """The largest norm of a row of each variable in one model, as far as all that was written into it was measured."""

    def __init__(self, figures: Mapping[str, Figures]) -> None:
        """`figures` of all that the model holds; empty when nobody has measured it."""
        self.by_key = _norms_of(figures)

    def add_delta(self, figures: Mapping[str, Figures]) -> None:
        if self.by_key:
            self.by_key = _larger(self.by_key, _norms_of(figures))

    def replace(self, figures: Mapping[str, Figures]) -> None:
        """A full was written over everything."""
        self.by_key = _norms_of(figures)


class SanityStatistics:
    """The largest norm that each variable may have here, and what else its recent updates had. One thread at a time.

    Norms are not forgotten with time: the row of a rare item is as large as it was when it was last updated, and a full
    holds every row. They are forgotten once all that is served was measured anew, and has them no more.

    Positions only grow, so what is not newer than all that was accepted, and was not refused, was accepted before or is
    part of it: it says nothing new, and is not judged by what came after it.
    """

    def __init__(self, known: KnownUpdates | None = None, *, min_updates: int) -> None:
        known = known or KnownUpdates()
        self._min_updates = min_updates
        self._until = known.until
        self._refused = deque(known.refused, maxlen=MAX_REFUSED)
        self._before = dict(known.variables)
        self._norms = {key: summary.usual.max_norm for key, summary in known.variables.items()}
        self._recent: dict[str, deque[Figures]] = {}
        self._largest: dict[str, tuple[float, float]] = {}

    def copy(self) -> SanityStatistics:
        """To try what updates would come to before they are applied."""
        known = KnownUpdates(self._until, self._before, tuple(self._refused))
        copied = SanityStatistics(known, min_updates=self._min_updates)
        copied._norms = dict(self._norms)
        copied._recent = {key: recent.copy() for key, recent in self._recent.items()}
        copied._largest = dict(self._largest)
        return copied

    @property
    def until(self) -> Position | None:
        """The newest position that was accepted."""
        return self._until

    def is_new(self, node: Node) -> bool:
        return self._until is None or node.position > self._until or node in self._refused

    def refuse(self, node: Node) -> None:
        """A later full may step over it: it is to be judged again when it is met again."""
        if node not in self._refused:
            self._refused.append(node)

    def usual(self, key: str) -> Usual | None:
        """None while too little is known."""
        summary = self._summarize(key)
        return summary.usual if summary.updates >= self._min_updates else None

    def note(self, figures: Mapping[str, Figures]) -> None:
        """These values are served, but are no update: only their norms say something."""
        self._norms = _larger(self._norms, _norms_of(figures))

    def hold(self, norms: LargestNorms) -> None:
        """A model with these norms is served from now on: what was larger and is gone widens no limit any more."""
        self._norms.update(norms.by_key)

    def add(self, accepted: Accepted) -> None:
        node = accepted.node
        self.note(accepted.figures)
        if not self.is_new(node):
            return
        if node in self._refused:
            self._refused.remove(node)
        self._until = max(self._until, node.position) if self._until else node.position
        # What one leads over several positions with is no measure of what one does that leads to the next.
        for key, figures in accepted.figures.items() if accepted.positions == 1 else ():
            self._recent.setdefault(key, deque(maxlen=WINDOW_UPDATES)).append(figures)
            self._largest.pop(key, None)

    def known(self) -> KnownUpdates:
        """What to begin with after a restart."""
        variables = {key: self._summarize(key) for key in self._norms}
        return KnownUpdates(self._until, variables, tuple(self._refused))

    def forget(self) -> None:
        self._until = None
        for known in (self._before, self._norms, self._recent, self._largest, self._refused):
            known.clear()

    def _summarize(self, key: str) -> Summary:
        recent = self._recent.get(key, ())
        before = self._before.get(key, _NOTHING) if len(recent) < WINDOW_UPDATES else _NOTHING
        if key not in self._largest:
            # Kept until the next update: each is compared with it twice, and a server begins with thousands.
            seen: list[Figures | Usual] = [before.usual, *recent]
            changes, shares = [item.max_change for item in seen], [item.touched_share for item in seen]
            self._largest[key] = max(changes), max(shares)
        usual = Usual(self._norms.get(key, 0.0), *self._largest[key])
        return Summary(min(WINDOW_UPDATES, before.updates + len(recent)), usual)


def _norms_of(figures: Mapping[str, Figures]) -> dict[str, float]:
    return {key: item.max_norm for key, item in figures.items()}


def _larger(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {key: max(one.get(key, 0.0), other.get(key, 0.0)) for key in (*one, *other)}
