"""A world to learn from: users click on items by taste, and tastes drift. Only numpy, the same for every process.

Every user and every item has a direction in a plane; a click is likely when the two point the same way. The items turn
with time, once around in `PERIOD_SECONDS`, so whoever stops learning is soon wrong and half a period later worst.
New users and items appear all the time, and stay for `NEW_SECONDS`. What a model sees of them are ids of 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_USERS = 10_000
NUM_ITEMS = 200
NEW_USERS_PER_SECOND = 40
NEW_ITEMS_PER_SECOND = 2
NEW_SECONDS = 20.0
# Whoever was not seen for so many seconds of event time is forgotten by the model.
FORGET_SECONDS = 5
PERIOD_SECONDS = 90.0

_STRENGTH = 3.0
_ALIKE = 0.97
_SHARE_OF_NEW = 0.1
_GOLDEN = 0x9E3779B97F4A7C15

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Clicks:
    """Who was shown what, by number, and whether it was clicked (1.0) or not (0.0), at one moment."""

    users: Ids
    items: Ids
    clicked: npt.NDArray[np.float32]
    at: float


class ClickStream:
    """Answers what is true at a moment (seconds since 1970), and draws clicks from it."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def probability(self, users: Ids, items: Ids, at: float) -> Floats:
        """The true chance of a click, which no model is told."""
        turned = 2 * np.pi * (at % PERIOD_SECONDS) / PERIOD_SECONDS
        affinity = np.cos(_angles(users, 1) - _angles(items, 2) - turned)
        return 1 / (1 + np.exp(-(_STRENGTH * affinity)))

    def are_alike(self, users: Ids, items: Ids) -> npt.NDArray[np.bool_]:
        """Which pairs have nearly the same chance as the first one, at every moment."""
        angles = _angles(users, 1) - _angles(items, 2)
        return np.asarray(np.cos(angles - angles[0]) > _ALIKE)

    def pairs(self, count: int) -> tuple[Ids, Ids]:
        """Users and items that were always there: few users are there often, most are there seldom."""
        users = NUM_USERS * self._random.random(count) ** 3
        return users.astype(np.int64), self._random.integers(0, NUM_ITEMS, count)

    def pairs_with_new(self, count: int, at: float) -> tuple[Ids, Ids]:
        """The same with those that came in the last while, here and there."""
        users, items = self.pairs(count)
        self._put_new(users, NUM_USERS, NEW_USERS_PER_SECOND, at)
        self._put_new(items, NUM_ITEMS, NEW_ITEMS_PER_SECOND, at)
        return users, items

    def _put_new(self, numbers: Ids, first: int, per_second: float, at: float) -> None:
        is_new = self._random.random(len(numbers)) < _SHARE_OF_NEW
        came_at = at - NEW_SECONDS * self._random.random(int(is_new.sum()))
        numbers[is_new] = first + (came_at * per_second).astype(np.int64)

    def clicks(self, users: Ids, items: Ids, at: float) -> npt.NDArray[np.float32]:
        is_clicked = self._random.random(len(users)) < self.probability(users, items, at)
        return is_clicked.astype(np.float32)

    def draw(self, count: int, at: float) -> Clicks:
        users, items = self.pairs_with_new(count, at)
        return Clicks(users, items, self.clicks(users, items, at), at)


def ids_of(numbers: Ids) -> Ids:
    """What a model knows them by: a number of 64 bits that tells nothing."""
    return (numbers.astype(np.uint64) * np.uint64(_GOLDEN)).view(np.int64)


def _angles(numbers: Ids, kind: int) -> Floats:
    """A direction for each, spread evenly."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN * (2 * kind + 1) % 2**64)
    mixed = (mixed ^ mixed >> np.uint64(29)) * np.uint64(_GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * (2 * np.pi / 2**53)


def log_loss(predicted: npt.ArrayLike, clicked: npt.ArrayLike) -> float:
    """The mean of -log(probability given to what happened)."""
    p = np.clip(np.asarray(predicted, np.float64), 1e-7, 1 - 1e-7)
    y = np.asarray(clicked, np.float64)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))
