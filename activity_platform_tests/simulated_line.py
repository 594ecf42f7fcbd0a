"""The LINE simulator as tests script and question it, over its control routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

TOKEN = "channel-token-1"


def user_id(number: int) -> str:
    """A well-formed id of its own for each number."""
    return f"U{number:032x}"


def user_ids(count: int) -> list[str]:
    return [user_id(number) for number in range(count)]


@dataclass(frozen=True)
class SimulatedLine:
    """A simulator that runs at `base_url`."""

    base_url: str

    def answer(self, answer: str | dict[str, Any], **rule: Any) -> None:
        """Adds a rule, see `line_simulator.Rule`."""
        self._call("POST", "rules", {"answer": answer, **rule}).raise_for_status()

    def log(self) -> dict[str, Any]:
        """What was asked since the last reset, see `line_simulator.RequestLog.report`."""
        return dict(self._call("GET", "log?ids=1").json())

    def reset(self) -> None:
        self._call("POST", "reset").raise_for_status()

    def _call(self, method: str, route: str, body: Any = None) -> httpx.Response:
        return httpx.request(method, f"{self.base_url}/_simulator/{route}", json=body)
