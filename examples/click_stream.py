"""A world to learn from: users click on items by taste, and tastes drift. Only numpy, the same for every process.

Every user and every item has a direction in a plane; a click is likely when the two point the same way. The items turn
with time, once around in `PERIOD_SECONDS`, so whoever stops learning is soon wrong and half a period later worst.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NUM_USERS = 10_000
NUM_ITEMS = 200
PERIOD_SECONDS = 90.0

_STRENGTH = 3.0
_ALIKE = 0.97

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Clicks:
    """Who was shown what, and whether it was clicked (1.0) or not (0.0), at one moment."""

    users: Ids
    items: Ids
    clicked: npt.NDArray[np.float32]
    at: float


class ClickStream:
    """Answers what is true at a moment (seconds since 1970), and draws clicks from it."""

    def __init__(self, seed: int = 0) -> None:
        fixed = np.random.default_rng(0)
        self._user_angles = fixed.uniform(0, 2 * np.pi, NUM_USERS)
        self._item_angles = fixed.uniform(0, 2 * np.pi, NUM_ITEMS)
        self._random = np.random.default_rng(seed)

    def probability(self, users: Ids, items: Ids, at: float) -> Floats:
        """The true chance of a click, which no model is told."""
        turned = 2 * np.pi * (at % PERIOD_SECONDS) / PERIOD_SECONDS
        affinity = np.cos(self._user_angles[users] - self._item_angles[items] - turned)
        return 1 / (1 + np.exp(-(_STRENGTH * affinity)))

    def are_alike(self, users: Ids, items: Ids) -> npt.NDArray[np.bool_]:
        """Which pairs have nearly the same chance as the first one, at every moment."""
        angles = self._user_angles[users] - self._item_angles[items]
        return np.asarray(np.cos(angles - angles[0]) > _ALIKE)

    def pairs(self, count: int) -> tuple[Ids, Ids]:
        """Users and items as they come: few users are there often, most are there seldom."""
        users = NUM_USERS * self._random.random(count) ** 3
        return users.astype(np.int64), self._random.integers(0, NUM_ITEMS, count)

    def clicks(self, users: Ids, items: Ids, at: float) -> npt.NDArray[np.float32]:
        is_clicked = self._random.random(len(users)) < self.probability(users, items, at)
        return is_clicked.astype(np.float32)

    def draw(self, count: int, at: float) -> Clicks:
        users, items = self.pairs(count)
        return Clicks(users, items, self.clicks(users, items, at), at)


def log_loss(predicted: npt.ArrayLike, clicked: npt.ArrayLike) -> float:
    """The mean of -log(probability given to what happened)."""
    p = np.clip(np.asarray(predicted, np.float64), 1e-7, 1 - 1e-7)
    y = np.asarray(clicked, np.float64)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))
