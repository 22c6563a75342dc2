"""In: an experiment and one of its groups. Out: record.nc: raw samples of every variant, language and PyTorch, in turn, each with a verdict.

One job measures one group, alone on the machine. A launch starts every participant anew; at each point all warm up and then take
turns, A B C A B C …, so that what drifts drifts for all. Finished launches are written to a journal at once: a job that is
killed goes on from there, and no half-written record ever stands.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from moapipe import __version__
from moapipe.errors import RecordError
from moapipe.lab import canary, record
from moapipe.lab.command import command
from moapipe.lab.experiment import Experiment, Group
from moapipe.lab.file import write_bytes
from moapipe.lab.foresight import drifts, sight
from moapipe.lab.journal import Journal, known, plain
from moapipe.lab.lock import alone
from moapipe.lab.participant import Participant, Trouble, inside, killed, leaked
from moapipe.lab.place import recorded
from moapipe.lab.plan import Entry, Plan, fitting, plan
from moapipe.lab.preparation import preparation, write_inputs
from moapipe.lab.record import Canary, Case, Sample
from moapipe.lab.room import free_bytes, inputs_folder
from moapipe.lab.runtime import environment, missing
from moapipe.lab.sampling import SIGHT, TURN, WARM_S, Frame, Placed, Rule, Seen, calls_for, judged, parse, rejudged
from moapipe.lab.variable import YARDSTICK
from moapipe.lab.watch import Watch
from moapipe.machine import topology
from moapipe.machine.arrangement import Arrangement
from moapipe.machine.seating import Arranged
from moapipe.machine.topology import Topology

Say = Callable[[str], None]
KEPT = "kept.nc"        # the newest record that was finished: a workflow takes `record.nc` away before it runs a job again
SLACK_S = 20.0          # beyond what a command should take, before its process counts as hanging
PATIENCE = 30.0         # times what a command should take: a neighbour can slow spinning threads down by that much and more


@dataclass
class Track:
    """One case in one launch: what has been seen of it so far."""

    entry: Entry
    calls: int = 1
    call_seconds: float = 0.0
    spent_s: float = 0.0
    seen: list[Seen] = field(default_factory=list)
    placed: Placed = field(default_factory=Placed)
    trouble: Trouble | None = None


@dataclass
class Job:
    """The state of one measuring job; finished launches are in its journal."""

    experiment: Experiment
    plan: Plan
    top: Topology
    say: Say
    journal: Journal
    watch: Watch = field(default_factory=Watch)
    spent: float = 0.0              # CPU seconds of participants that have ended
    running: list[Participant] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    blocks: int = 0

    def read(self) -> None:
        """A reading of the watch."""
        self.watch.read(self.spent + sum(p.cpu_seconds for p in self.running))


def bench(e: Experiment, group: Group, say: Say = print, node: int = 0) -> xr.Dataset:
    """Measure a group and write its record.nc, or that of a further `node`. A record of the very same libraries, prediction, points and rules stays as it is.

    Raises RecordError without a frozen prediction, LabError when the machine stays taken; what goes wrong with one participant
    is a status with its reason in the record, and the others go on.
    """
    top = topology.probe()
    planned, place = plan(e, group, top), e.root / recorded(e, group, node)
    if (old := _kept(group, place, planned.key, say)) is not None:
        return old
    due = any(not x.status for x in planned.entries)
    with alone(f"bench {group.path()} of {e.name}", say) if due else nullcontext():
        old = _kept(group, place, planned.key, say)     # whom we waited for may have measured the same, or a part of it
        return _measure(Job(e, planned, top, say, Journal.open(place.with_name("journal.json"), planned.key)), place) if old is None else old


def _measure(job: Job, place: Path) -> xr.Dataset:
    """What the journal lacks, and the record of all."""
    planned = job.plan
    if n := sum(any(rows) for rows in job.journal.launches.values()):
        job.say(f"{planned.group.path()}: goes on after {n} finished launch{'es' * (n > 1)}")
    _launches(job)
    cases = [_case(job, i, x) for i, x in enumerate(planned.entries)]
    data = record.make(cases, _attributes(job))
    record.write(data, place.with_name(KEPT))
    write_bytes(place, place.with_name(KEPT).read_bytes())
    spoilt = {(x.point.label, x.arranged) for x, case in zip(planned.entries, cases, strict=True) if _undecided(case.status, case.reason)}
    job.journal.forget([i for i, x in enumerate(planned.entries) if (x.point.label, x.arranged) in spoilt])
    job.journal.write()
    return data


def _kept(group: Group, place: Path, key: str, say: Say) -> xr.Dataset | None:
    """The record that stands, at its place again; or nothing."""
    for path in (place, place.with_name(KEPT)):
        if (old := _standing(path, key)) is not None:
            say(f"{group.path()}: the record of these builds stands; nothing to measure")
            write_bytes(place, path.read_bytes())
            return old
    return None


def _standing(place: Path, key: str) -> xr.Dataset | None:
    """The record that is there, when it measured the same and every case got a valid sample that could; damaged ones are measured
    again, and so are those of a noisy machine, or where a participant was killed."""
    if not place.is_file():
        return None
    try:
        data = record.read(place)
    except RecordError:
        return None
    names = {row.code: name for name, row in record.STATUSES.items()}
    undecided = any(_undecided(names[s], str(r)) for s, r in zip(data["status"].values.tolist(), data["reason"].values.tolist(), strict=True))
    return data if data.attrs.get("key") == key and not undecided else None


def _undecided(status: str, reason: str) -> bool:
    """Whether a case came out like that because of what went on around it: it is worth another try."""
    return status == "all_invalid" or killed(reason)


# ------------------------------------------------------------------ launches


def _launches(job: Job) -> None:
    """Every point of every launch that the journal does not have; all participants of a point again, because comparisons stay in a job."""
    arranged = {x.point.arrangement: x.arranged for x in job.plan.entries if not x.status}
    points = {a: defaultdict[str, list[int]](list) for a in arranged}
    for i, x in enumerate(job.plan.entries):
        if x.point.arrangement in points and not x.status:
            points[x.point.arrangement][x.point.label].append(i)
    names = [(k, a, f"{k}/{a.text()}") for k in range(job.experiment.file.launches) for a in arranged]
    todo = [(k, a, name, due) for k, a, name in names if (due := [p for p, entries in points[a].items() if job.journal.lacks(name, entries)])]
    total, job.begun = sum(len(due) for *_, due in todo), time.monotonic()
    before = _canary(job) if todo else None
    for launch, turn in groupby(todo, key=itemgetter(0)):
        measured: list[dict[str, Any]] = []
        for _, asked, name, due in turn:
            done: dict[str, Any] = {}
            with _participants(job, arranged[asked]) as start:
                for point in due:
                    _point(job, launch, arranged[asked], point, start, done, total)
            job.journal.launches[name] = job.journal.launches.get(name, {}) | done
            job.journal.write()
            measured += done.values()
        after = _canary(job)
        for row in measured:
            row["canaries"] = [before, after]
        before = after
        job.journal.write()


def _canary(job: Job) -> list[Any]:
    """The figures of a canary; its CPU time is ours, and the watch reads on both sides of it."""
    job.read()
    found, seconds = canary.send(job.top, job.experiment.root, job.experiment.file.machine)
    job.spent += seconds
    job.read()
    return plain(found)


Start = Callable[[Entry], Participant]


@contextmanager
def _participants(job: Job, arranged: Arranged) -> Iterator[Start]:
    """A function that gives an entry's process, started at its first use and again after its end; all end with the context."""
    inside(arranged.mask)
    alive: dict[str, Participant] = {}

    def start(entry: Entry) -> Participant:
        found = alive.get(entry.name)
        if found is None or found not in job.running:
            found = alive[entry.name] = _launch(job, entry, arranged)
        return found

    try:
        yield start
    finally:
        for p in list(job.running):
            _end(job, p)


def _launch(job: Job, entry: Entry, arranged: Arranged) -> Participant:
    e = job.experiment
    ours = environment(arranged, e.root, e.file.machine) | (PYTORCH if entry.library is None else {})
    p = Participant(entry.name, command(entry, e, job.plan.group), ours, arranged.mask)
    job.running.append(p)
    try:
        told = p.ready()
        if complaint := p.complaint():
            raise Trouble("refused", f"the OpenMP runtime does not take the binding: {complaint}")
    except Trouble:
        _end(job, p)
        raise
    if entry.library is None:
        job.journal.libraries |= json.loads(" ".join(told))
    return p


PYTORCH = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "THP_MEM_ALLOC_ENABLE": "1"}
"""PyTorch makes its outputs anew in every call. Memory that it frees stays with it, and large pages are asked for as the driver does,
so that its time holds no page faults."""


def _end(job: Job, p: Participant) -> None:
    p.end()
    if p in job.running:
        job.running.remove(p)
        job.spent += p.cpu_seconds


# ------------------------------------------------------------------ one point of one launch


def _point(job: Job, launch: int, arranged: Arranged, label: str, start: Start, done: dict[str, Any], total: int) -> None:
    """Warm all participants up, then let them take turns until each has enough."""
    manifest = job.plan.manifest
    assert manifest is not None, "an entry without status has a manifest"
    here = [(i, x) for i, x in enumerate(job.plan.entries) if (x.point.label, x.arranged) == (label, arranged)]
    lost = {i for key in job.journal.launches.values() for i, row in key.items() if row["status"]}
    live = tuple(x for i, x in here if not x.status and str(i) not in lost)
    index = {id(x): i for i, x in here}
    _tell(job, launch, label, arranged.asked, len(live), total)
    job.read()
    with inputs_folder(live, manifest) as folder:
        tracks = [Track(x, trouble=Trouble("refused", refusal) if refusal else None) for x, refusal in fitting(live, manifest, free_bytes())]
        if any(t.trouble is None for t in tracks):
            write_inputs(job.experiment, job.plan.group, live[0].point, manifest, folder)
        tracks.sort(key=lambda t: index[id(t.entry)])
        turned = tracks[launch % len(tracks) :] + tracks[: launch % len(tracks)] if tracks else []
        yardsticks = [t for t in turned if t.entry.values["target"] == YARDSTICK]
        for t in yardsticks:
            _guarded(job, t, start, partial(_prepare, job, t, manifest, folder))
            _guarded(job, t, start, partial(_look, t))
        _foresee(job, f"{launch}/{arranged.asked.text()}", yardsticks, index)
        for t in turned:
            if t not in yardsticks:
                _guarded(job, t, start, partial(_prepare, job, t, manifest, folder))
        job.read()
    frame = Frame(arranged, 0.0, job.watch)
    _rounds(job, turned, start, frame)
    best = max((s.clock for t in turned for s in t.seen), default=0.0)
    for t in turned:
        samples = rejudged(t.seen, frame, best, t.placed)
        done[str(index[id(t.entry)])] = {
            "samples": [plain(s) for s in samples], "status": t.trouble.status if t.trouble else "",
            "reason": t.trouble.reason if t.trouble else "",
        }
    job.blocks += 1


def _look(t: Track, p: Participant) -> None:
    """How long a yardstick's call takes now, in the middle; these samples are not its own."""
    rows, _ = p.ask(f"turn {t.calls} {SIGHT}", PATIENCE * (SIGHT + 1) * t.calls * t.call_seconds + SLACK_S)
    t.call_seconds = float(np.median([s.seconds / s.calls for s in (parse(row, t.calls) for row in rows)]))


def _foresee(job: Job, launch: str, yardsticks: Sequence[Track], index: Mapping[int, int]) -> None:
    """Predict all other cases of the point again with the memory that the yardsticks have just found, and freeze that."""
    known = drifts([(t.entry.prediction, t.call_seconds) for t in yardsticks if t.trouble is None and t.entry.prediction])
    others = {i: sight(x.prediction, known) for i, x in enumerate(job.plan.entries) if i in index.values() and x.values["target"] != YARDSTICK}
    if known:
        job.journal.sights.setdefault(launch, {}).update({str(i): [s.drift, s.seconds] for i, s in others.items() if not np.isnan(s.drift)})
        job.journal.write()


def _guarded(job: Job, track: Track, start: Start, act: Callable[[Participant], None]) -> None:
    """Do something with a track's process; its trouble stops this track and its process, nobody else."""
    if track.trouble is not None:
        return
    p = None
    try:
        p = start(track.entry)
        act(p)
    except Trouble as trouble:
        track.trouble = trouble
        job.say(f"  {track.entry.name}: {trouble.status}: {trouble.reason}")
        if p is not None:
            _end(job, p)


def _prepare(job: Job, t: Track, manifest: Mapping[str, Any], folder: Path, p: Participant) -> None:
    """Load the inputs, warm up, choose the calls of a sample. Trouble `timed_out` when one call has no room in the time box."""
    box = job.experiment.file.time_box_s / job.experiment.file.launches
    memory = t.entry.arranged.memory
    p.ask(f"memory {memory.policy} {memory.touchers} {','.join(map(str, memory.nodes)) or '-'}", SLACK_S)
    p.ask(preparation(t.entry, manifest, folder), SLACK_S * 6)
    t.placed = Placed.of(p.ask("placed", SLACK_S)[1])
    _, told = p.ask(f"warm {min(WARM_S, box)}", 2 * box + SLACK_S)
    t.call_seconds = float(told[1])
    t.calls = calls_for(t.call_seconds)
    if t.call_seconds > box:
        raise Trouble("timed_out", f"one call took {t.call_seconds:.3g} s; the time box of {box * job.experiment.file.launches:g} s in "
                                   f"{job.experiment.file.launches} launches has no room for it")


def _rounds(job: Job, tracks: Sequence[Track], start: Start, frame: Frame) -> None:
    """Turn after turn until every track has enough."""
    f = job.experiment.file
    rule = Rule(f.samples, f.interval, f.time_box_s / f.launches)
    live = [t for t in tracks if t.trouble is None]
    while live:
        for t in live:
            _guarded(job, t, start, partial(_turn, t, rule))
            job.read()
        best = max((s.clock for t in tracks for s in t.seen), default=0.0)
        now = Frame(frame.arranged, best, frame.watch)
        live = [t for t in live if t.trouble is None and not rule.enough([judged(s, now, t.placed) for s in t.seen], t.spent_s)]


def _turn(t: Track, rule: Rule, p: Participant) -> None:
    sample_s = t.calls * t.call_seconds
    samples = rule.next_turn(len(t.seen), sample_s, t.spent_s)
    begin = time.monotonic()
    rows, _ = p.ask(f"turn {t.calls} {samples}", PATIENCE * (TURN + 1) * sample_s + SLACK_S)
    t.seen += [parse(row, t.calls) for row in rows]
    t.spent_s += time.monotonic() - begin


def _tell(job: Job, launch: int, label: str, asked: Arrangement, count: int, total: int) -> None:
    """One line of progress with the time left, once there is something to judge it by."""
    left = (time.monotonic() - job.begun) / job.blocks * (total - job.blocks) if job.blocks else None
    after = f", about {left:.0f} s left" if left is not None else ""
    job.say(f"{job.plan.group.path()}: launch {launch + 1} of {job.experiment.file.launches}, {label} {asked.text()}: {count} participants{after}")


# ------------------------------------------------------------------ the record


def _case(job: Job, i: int, x: Entry) -> Case:
    """An entry with all its launches as a case of the record."""
    names = [name for name, found in job.journal.launches.items() if str(i) in found]
    rows = [job.journal.launches[name][str(i)] for name in names]
    sights = [job.journal.sights.get(name, {}).get(str(i), [float("nan")] * 2) for name in names]
    launches = [[Sample(*known(s)) for s in row["samples"]] for row in rows]
    canaries = [[Canary(*known(c)) for c in row.get("canaries", ())] for row in rows]
    status, reason = x.status, x.reason
    if trouble := next((row for row in rows if row["status"]), None):
        status, reason = trouble["status"], trouble["reason"]
    elif not status:
        status, reason = _outcome(launches)
    then = {name: [s[k] for s in sights] for k, name in enumerate(("memory_drift", "foreseen_seconds"))}
    return Case({**x.values, **then}, dict(x.point.at), status, reason, launches, canaries)


def _outcome(launches: Sequence[Sequence[Sample]]) -> tuple[str, str]:
    """Status and reason of a case that went through."""
    verdicts = [s.verdict for launch in launches for s in launch]
    if "valid" in verdicts:
        return "measured", ""
    if not verdicts:
        return "not_run", "the job ended before its turn"
    most = max(sorted(set(verdicts)), key=verdicts.count)
    return "all_invalid", f"all {len(verdicts)} samples are invalid, most of them {most}: {record.VERDICTS[most].text} `make again` measures it again."


def _attributes(job: Job) -> dict[str, Any]:
    root, machine = job.experiment.root, job.experiment.file.machine
    able = {x.point.arrangement.text(): x.arranged for x in job.plan.entries if not x.arranged.reason and not missing(x.arranged)}
    variables = {text: environment(arranged, root, machine) for text, arranged in able.items()} | {"torch": PYTORCH, "taken away": leaked(os.environ)}
    return {
        "moapipe_version": __version__, "experiment": job.experiment.name, "host": platform.node(), "topology": job.top.line(),
        "compilers": json.dumps(dict(job.plan.compilers), sort_keys=True), "libraries": json.dumps(job.journal.libraries, sort_keys=True),
        "environment": json.dumps(variables, sort_keys=True), "key": job.plan.key,
        "clock": f"CLOCK_MONOTONIC, {time.get_clock_info('monotonic').resolution:g} s",
        "created": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    }
