"""In: JSON of a calibration. Out: what distance and company cost on a machine: who reads from where, what a barrier costs whom.

`lab.locality` measures them as a part of the calibration; `machine.penalty` predicts every arrangement from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from moapipe.machine.arrangement import Arrangement
from moapipe.machine.topology import Topology


@dataclass(frozen=True)
class Locality:
    """`bandwidth` (B/s, all threads of the node together) and `latency` (s of a dependent load) by "i/j": threads on memory node i,
    pages on node j. `barrier`: seconds of an empty parallel region by the arrangement's text. `clock`: Hz by threads that run at
    once. `topology` is the machine that they are of."""

    topology: Topology | None = None
    bandwidth: Mapping[str, float] = field(default_factory=dict)
    latency: Mapping[str, float] = field(default_factory=dict)
    barrier: Mapping[str, float] = field(default_factory=dict)
    clock: Mapping[int, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Locality:
        """The inverse of `to_json`; nothing of it is required."""
        top = data.get("topology")
        clock = {int(k): float(v) for k, v in data.get("clock", {}).items()}
        return Locality(Topology.from_json(top) if top else None, dict(data.get("bandwidth", {})), dict(data.get("latency", {})), dict(data.get("barrier", {})), clock)


def barrier_key(asked: Arrangement) -> str:
    """What a barrier depends on: not the memory."""
    return replace(asked, memory="owner").text()
