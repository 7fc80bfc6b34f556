"""One thing that was looked at: what was found, whether that is good, and what to do when it is not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """WARN: it works, but slower, or with less safety, or not for everybody. FAIL: something will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    verdict: Verdict
    found: str
    advice: str = ""

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "verdict": str(self.verdict),
            "found": self.found,
            "advice": self.advice or None,
        }


def ok(name: str, found: str) -> Check:
    return Check(name, Verdict.OK, found)


def warning(name: str, found: str, advice: str) -> Check:
    return Check(name, Verdict.WARN, found, advice)


def failure(name: str, found: str, advice: str) -> Check:
    return Check(name, Verdict.FAIL, found, advice)
