"""In: this machine. Out: whether a clean measurement is valid every time, as long as nobody else is on it.

A run is a process of its own on all cores that reads an array again and again, measured and judged as bench does. Canaries before and after it
say whether it had the machine to itself. A run that had not is repeated. One that had and is not valid is a fault of ours: at once where its
verdict is of threads, CPUs or memory, which no neighbour touches, else when it comes out so in the last of TRIES.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from moapipe.lab import canary
from moapipe.lab.experiment import machine_file, resolve_isa
from moapipe.lab.participant import Participant
from moapipe.lab.program import program
from moapipe.lab.record import Canary
from moapipe.lab.runtime import environment
from moapipe.lab.sampling import WARM_S, Frame, Placed, Seen, calls_for, parse, rejudged
from moapipe.lab.verdict import MOSTLY, THRESHOLDS
from moapipe.lab.watch import Watch
from moapipe.lab.yardstick import compiled
from moapipe.machine import topology
from moapipe.machine.arrangement import Arrangement
from moapipe.machine.seating import Arranged, arrange

RUNS, TRIES, TURNS, TURN = 20, 4, 5, 4
ELEMENTS = 1 << 20
STALL_S = 1e-3      # of an empty region: interrupts take tens of microseconds, a scheduler's slice a millisecond and more
LIMIT_S = 60.0
PASSING = frozenset(("valid", "preempted", "cpu_starved", "slow_clock"))
"""Verdicts that a few samples may have on a quiet machine: its kernel's own threads take a CPU for a tenth of a millisecond now and then."""

Run = Callable[[], Counter[str]]
Probe = Callable[[], Canary]


@dataclass(frozen=True)
class Rehearsal:
    """Of `runs` clean ones so many were `valid`, with the verdicts on all their samples together; `repeated` were disturbed and done again,
    `given_up` every time; `faults` are the verdicts of those that had the machine to themselves and were not valid."""

    runs: int
    valid: int
    repeated: int
    given_up: int
    faults: tuple[str, ...]
    samples: str = ""

    def __str__(self) -> str:
        parts = [f"{self.valid} of {self.runs} clean runs are valid" + f" ({self.samples})" * bool(self.samples)]
        parts += [f"{self.repeated} disturbed ones were repeated"] * bool(self.repeated)
        parts += [f"{self.given_up} never had the machine to themselves in {TRIES} tries"] * bool(self.given_up)
        return "; ".join([*parts, *(f"not valid on a quiet machine: {fault}" for fault in self.faults)])


def rehearse(root: Path, machine: str, runs: int = RUNS) -> Rehearsal:
    """Measure `runs` times on this machine. LabError when a program does not compile."""
    top = topology.probe()
    arranged = arrange(Arrangement(top.cores, top.cores), top)
    library = compiled(root, machine, resolve_isa("auto", machine_file(machine, root)), "f64")
    return rehearsed(lambda: _run(library, arranged, root, machine), lambda: canary.send(top, root, machine)[0], runs)


def rehearsed(run: Run, probe: Probe, runs: int) -> Rehearsal:
    """The count of such runs, with a probe before and after each. As in the table, a run is valid when MOSTLY all of its samples are, here if
    the others are PASSING."""
    valid = repeated = given_up = 0
    faults, samples = [], Counter[str]()
    for _ in range(runs):
        for attempt in range(TRIES):
            before, verdicts, after = probe(), run(), probe()
            if verdicts.keys() <= PASSING and verdicts["valid"] > MOSTLY * verdicts.total():
                valid, samples = valid + 1, samples + verdicts
                break
            alone, last = quiet((before, after)) and not verdicts["neighbour"], attempt + 1 == TRIES
            if alone and (last or not verdicts.keys() <= PASSING):
                faults.append(_told(verdicts))
                break
            repeated, given_up = repeated + (not last), given_up + last
    return Rehearsal(runs, valid, repeated, given_up, tuple(faults), _told(samples))


def _told(verdicts: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(verdicts.items()))


def quiet(found: Iterable[Canary]) -> bool:
    """Whether canaries met nobody: no CPU time of others, no region that lost a CPU for a scheduler's slice."""
    return all(c.other_cpus <= THRESHOLDS["neighbour"].value and c.stall_seconds <= STALL_S for c in found)


def _run(library: Path, arranged: Arranged, root: Path, machine: str) -> Counter[str]:
    """The verdicts on the samples of one process."""
    threads, watch = arranged.asked.threads, Watch()
    command = [str(program("driver", root, machine)), str(library), "yardstick_read", "f64", str(threads)]
    with Participant("rehearsal", command, environment(arranged, root, machine), arranged.mask) as p:
        p.ready()
        p.ask(f"prepare 1 0 0 1\ninput {ELEMENTS} -\nsize {ELEMENTS}", LIMIT_S)
        placed = Placed.of(p.ask("placed", LIMIT_S)[1])
        calls = calls_for(float(p.ask(f"warm {WARM_S}", LIMIT_S)[1][1]))
        seen: list[Seen] = []
        watch.read(p.cpu_seconds)
        for _ in range(TURNS):
            rows, _ = p.ask(f"turn {calls} {TURN}", LIMIT_S)
            seen += [parse(row, calls) for row in rows]
            watch.read(p.cpu_seconds)
    return Counter(s.verdict for s in rejudged(seen, Frame(arranged, 0.0, watch), max(s.clock for s in seen), placed))
