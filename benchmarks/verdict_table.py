"""A table of checks that hold or fail, printed as they come."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Table:
    """The verdicts, printed as they come."""

    failed: int = 0
    rows: list[str] = field(default_factory=list)

    def check(self, what: str, holds: bool, detail: object = "") -> None:
        self.failed += not holds
        self.say("ok  " if holds else "FAIL", what, detail)

    def say(self, verdict: str, what: str, detail: object = "") -> None:
        self.rows.append(f"{verdict}  {what:<58} {detail}")
        print(self.rows[-1], flush=True)
