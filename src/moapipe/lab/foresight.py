"""In: frozen predictions, what the yardsticks of a point took just before a launch. Out: each case's time with that memory.

A calibration knows what the memory gave some minutes ago. On a shared host that may have changed by half; a prediction of what
memory bounds is then one of the host. So yardsticks are sampled first, and before any other case of the point is called, its
prediction is made again with their memory and frozen beside the first. Nothing of the kernels themselves is known then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Sight:
    """`drift`: how many times as long as calibrated memory takes; `seconds`: predicted time of one call with it. NaN where unknown."""

    drift: float = nan
    seconds: float = nan


def drifts(found: Iterable[tuple[Row, float]]) -> dict[str, float]:
    """By kind of store, a yardstick's time over its prediction; `found` has each one's row of prediction.json and the seconds of a call."""
    return {str(row["stores"]): seconds / row["predicted_seconds"] for row, seconds in found}


def sight(row: Row | None, known: Mapping[str, float]) -> Sight:
    """A case's time with the memory as it is: each region as long as the slower of its own work and of what comes from memory, which
    takes `drift` times as long. The yardstick of the same stores tells, else the one that reads."""
    if row is None or "parts" not in row:
        return Sight()
    drift = known.get(str(row["stores"]), known.get("none", nan))
    if isnan(drift):
        return Sight()
    slower = sum(max(own, memory * drift) - max(own, memory) for own, memory in row["parts"])
    return Sight(drift, row["predicted_seconds"] + slower)
