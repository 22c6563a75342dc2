"""In: a calibration as JSON. Out: the measured rates of one machine, by element type and number of threads.

`lab.calibrate` measures them, `machine.predict` divides counts by them, the dataset carries them as ceilings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from moapipe.errors import LabError
from moapipe.machine.locality import Locality

SCHEMA = 3
MEMORY = "memory"
LEVELS = ("L1", "L2", "L3", MEMORY)
"""Where data may lie, nearest first."""
Way = Literal["read", "copy", "stream"]
WAYS: tuple[Way, ...] = get_args(Way)
"""How data are moved: read only, copied through the caches, which fetch a line before it is stored to, or stored past them."""
MEASURED = (*WAYS, "column")

ByThreads = Mapping[int, float]


@dataclass(frozen=True)
class Rates:
    """Operations a second, all threads together. `fma` fused multiply-adds (two flops each) of full vectors from registers;
    `tile` the same in a long register tile that loads its operands; `vector` additions, maxima and the like of full vectors;
    `exp` our exp2; all in elements. `start` seconds from a register tile's last step to the next tile's first, on one thread:
    the multiply-adds that are under way, the mispredicted end of the loop, the accumulators to memory. `chain` seconds from a
    multiply-add to one that needs it, `link` the same of additions; `ahead` steps of a fold that are behind the processor when it
    begins the next one, which needs none of them; `fold` seconds for the lanes of a vector to become one number, one after the other."""

    fma: ByThreads
    tile: ByThreads
    vector: ByThreads
    exp: ByThreads
    start: ByThreads
    chain: ByThreads
    link: ByThreads
    ahead: ByThreads
    fold: ByThreads


@dataclass(frozen=True)
class Bandwidth:
    """Bytes a second that really move, all threads together, for data that lie in one level: `read` only; `copy` with plain
    stores, whose lines are fetched before they are written (three bytes move for each copied); `stream` with streaming stores;
    `column` whole lines read one a page, all at the same place in their pages."""

    read: ByThreads
    copy: ByThreads
    stream: ByThreads
    column: ByThreads


@dataclass(frozen=True)
class Calibration:
    """What one machine does, measured. `lanes` of a vector by element type; `clock` in Hz; `capacity` in bytes and `sharers`
    (threads on one instance, by number of threads) by cache level; `region` seconds for starting and joining a parallel region;
    `locality` what distance and company cost, empty where it was not measured."""

    machine: str
    isa: str
    topology: str
    clock: float
    lanes: Mapping[str, int]
    capacity: Mapping[str, int]
    sharers: Mapping[str, ByThreads]
    rates: Mapping[str, Rates]
    bandwidth: Mapping[str, Bandwidth]
    region: ByThreads
    provenance: Mapping[str, str]
    locality: Locality = field(default_factory=Locality)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_json`. LabError when it is another schema, or not complete."""
        try:
            if data["schema"] != SCHEMA:
                raise LabError(f"calibration has schema {data['schema']}, expected {SCHEMA}", hint="run `moapipe calibrate` again")
            return Calibration(
                data["machine"], data["isa"], data["topology"], float(data["clock"]), dict(data["lanes"]), dict(data["capacity"]),
                {k: _threads(v) for k, v in data["sharers"].items()},
                {k: Rates(**{n: _threads(x) for n, x in v.items()}) for k, v in data["rates"].items()},
                {k: Bandwidth(**{n: _threads(x) for n, x in v.items()}) for k, v in data["bandwidth"].items()},
                _threads(data["region"]), dict(data["provenance"]), Locality.from_json(data.get("locality", {})),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            raise LabError(f"calibration is incomplete: {e}", hint="run `moapipe calibrate` again") from e


def _threads(data: Mapping[str, float]) -> dict[int, float]:
    """JSON's keys are text."""
    return {int(k): float(v) for k, v in data.items()}


def at(rates: ByThreads, threads: int) -> float:
    """The rate at a number of threads; more threads than measured get the largest measured number's."""
    if threads in rates:
        return rates[threads]
    fewer = [t for t in rates if t < threads]
    return rates[max(fewer)] if fewer else rates[min(rates)]
