"""In: cases with their samples; predictions; validations. Out: one xarray dataset with the schema of `lab.variable`, on disk and back.

Raw samples are kept; a case without samples has a status and a reason; a file appears whole or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from moapipe.errors import RecordError
from moapipe.lab import variable
from moapipe.lab.experiment import PROTOCOL
from moapipe.lab.file import write_bytes
from moapipe.lab.seal import AGAIN, sealed, unsealed
from moapipe.lab.variable import ATTRIBUTES, DTYPES, KEY, LEVELS, MOMENTS, NOT_A_PARAMETER, SCHEMA, STATUSES, VARIABLES
from moapipe.lab.verdict import VERDICTS

__all__ = ["STATUSES", "VARIABLES", "VERDICTS", "Canary", "Case", "Sample", "collect", "join", "keys", "make", "parameters", "read", "write"]


@dataclass(frozen=True)
class Sample:
    """One sample: `seconds` is the wall time of one call, averaged over `calls`; `cpu_seconds` of the whole sample."""

    seconds: float
    calls: int
    verdict: str
    cpu_seconds: float = float("nan")
    involuntary_switches: float = float("nan")
    other_cpu_seconds: float = float("nan")
    wait_seconds: float = float("nan")
    voluntary_switches: float = float("nan")
    clock_rate: float = float("nan")
    cpus_used: float = float("nan")
    throttled_periods: float = float("nan")
    misplaced_share: float = float("nan")


@dataclass(frozen=True)
class Canary:
    """What an empty parallel region, a read and a clock on all CPUs met before or after a launch; see VARIABLES."""

    region_seconds: float = float("nan")
    stall_seconds: float = float("nan")
    bandwidth: float = float("nan")
    clock_rate: float = float("nan")
    other_cpus: float = float("nan")


NODE_VARIABLES = tuple(name for name, row in VARIABLES.items() if "node" in row.dims)
"""What each node has of its own: its host, its launches with their samples and canaries."""
RAGGED = ("node", "launch", "sample")           # dims that records differ in and are padded in
DIMS = ("case", *RAGGED, "level", "moment")


@dataclass(frozen=True)
class Case:
    """One participant at one set of run axes.

    `values` holds variables of dims (case) by name, of dims (case, level) as {level: value} and of dims (case, node, launch) as lists;
    what is left out is unknown.
    `parameters` are the run axes that are sizes, {"B": 8, "n": 1024}; `launches` the samples of each launch on one host; `canaries` what
    stood before and after each.
    """

    values: Mapping[str, Any]
    parameters: Mapping[str, int]
    status: str
    reason: str = ""
    launches: Sequence[Sequence[Sample]] = field(default_factory=tuple)
    canaries: Sequence[Sequence[Canary]] = field(default_factory=tuple)


def make(cases: Sequence[Case], attributes: Mapping[str, Any]) -> xr.Dataset:
    """A dataset of `cases` from one host, the attribute `host`; short launches are padded with NaN and `not_taken`.

    Raises RecordError for an unknown variable, status, verdict or attribute, for a case twice, and for a status without its reason.
    """
    for case in cases:
        _check_case(case)
    _check_names(attributes, ATTRIBUTES, "attribute")
    launches = max([1, *(len(c.launches) for c in cases)])
    samples = max([1, *(len(launch) for c in cases for launch in c.launches)])
    sizes = {"case": len(cases), "node": 1, "launch": launches, "sample": samples, "level": len(LEVELS), "moment": len(MOMENTS)}
    data = xr.Dataset(coords={"level": ("level", np.array(LEVELS, dtype=str), {"long_name": "memory level"}), "moment": _moments()})
    for name, row in VARIABLES.items():
        values: np.ndarray = np.full([sizes[d] for d in row.dims], variable.fill(name), dtype=object if row.kind == "text" else DTYPES[row.kind])
        for i, case in enumerate(cases):
            _fill(values, i, name, case)
        if name == "host":
            values[:] = str(attributes.get("host", ""))
        typed = np.array(values.tolist(), dtype=str).reshape(values.shape) if row.kind == "text" else values
        data[name] = (row.dims, typed, variable.attributes(name))
    sizes_named = sorted({p for c in cases for p in c.parameters})
    for name in sizes_named:
        column = np.array([c.parameters.get(name, NOT_A_PARAMETER) for c in cases], dtype=np.int64)
        data[name] = ("case", column, {"long_name": f"size parameter {name}", "units": "1"})
    data = data.set_coords([*(n for n, row in VARIABLES.items() if row.source == "identity"), *sizes_named])
    data.attrs = {name: "" for name in ATTRIBUTES} | {"Conventions": "CF-1.11", "schema": SCHEMA, "protocol": PROTOCOL} | dict(attributes)
    check(data)
    return data


def _moments() -> tuple[Any, ...]:
    return ("moment", np.array(MOMENTS, dtype=str), {"long_name": "moment beside a launch"})


def _check_names(found: Iterable[str], known: Mapping[str, Any], what: str) -> None:
    for name in found:
        if name not in known:
            raise RecordError(f"unknown {what} {name!r}", hint=f"known: {', '.join(known)}")


def _check_case(case: Case) -> None:
    where = " ".join(str(case.values.get(k, "?")) for k in KEY)
    _check_names(case.values, VARIABLES, "variable")
    _check_names([case.status], STATUSES, "status")
    _check_names({s.verdict for launch in case.launches for s in launch}, VERDICTS, "verdict")
    if case.status != "measured" and not case.reason:
        raise RecordError(f"status {case.status} has no reason", where=where, hint="say in one sentence why the case is not measured")
    if clash := [p for p in case.parameters if p in VARIABLES or p in DIMS]:
        raise RecordError(f"size parameter {clash[0]!r} has the name of a variable of the record", where=where, hint="rename the parameter")
    taken = any(launch for launch in case.launches)
    if case.status == "measured" and not any(s.verdict == "valid" for launch in case.launches for s in launch):
        raise RecordError("status measured without a valid sample", where=where, hint="use all_invalid" if taken else "use not_run")


def _fill(values: np.ndarray, i: int, name: str, case: Case) -> None:
    """Put one case's values of one variable into row `i`."""
    if "sample" in VARIABLES[name].dims:
        for j, launch in enumerate(case.launches):
            row = [VERDICTS[s.verdict].code if name == "verdict" else getattr(s, name) for s in launch]
            values[i, 0, j, : len(row)] = row
    elif "moment" in VARIABLES[name].dims:
        for j, pair in enumerate(case.canaries):
            values[i, 0, j, : len(pair)] = [getattr(c, name.removeprefix("canary_")) for c in pair]
    elif name == "status":
        values[i] = STATUSES[case.status].code
    elif name == "reason":
        values[i] = case.reason
    elif name in case.values and "level" in VARIABLES[name].dims:
        values[i] = [case.values[name].get(level, np.nan) for level in LEVELS]
    elif name in case.values and "launch" in VARIABLES[name].dims:
        values[i, 0, : len(case.values[name])] = case.values[name]
    elif name in case.values:
        values[i] = case.values[name]


def parameters(data: xr.Dataset) -> list[str]:
    """The names of the size parameters that are coordinates of this dataset."""
    return sorted(str(n) for n, v in data.variables.items() if v.dims == ("case",) and n not in VARIABLES)


def keys(data: xr.Dataset) -> list[tuple[Any, ...]]:
    """What tells each case from every other, in the order of KEY."""
    return list(zip(*(data[name].values.tolist() for name in KEY), strict=True))


def check(data: xr.Dataset, where: str = "") -> None:
    """Raise RecordError unless `data` has this schema and protocol, and each case once."""
    for name, expected in (("schema", SCHEMA), ("protocol", PROTOCOL)):
        found = data.attrs.get(name, "none")
        if str(found) != str(expected):
            raise RecordError(f"{name}: expected {expected}, found {found}", where=where, hint="measure again with this version")
    for name, row in VARIABLES.items():
        if name not in data.variables:
            raise RecordError(f"variable {name!r} is missing", where=where, hint="the file is no record of this version")
        if data[name].dims != row.dims:
            raise RecordError(f"variable {name!r}: expected dims {row.dims}, found {data[name].dims}", where=where)
    if again := [key for key, count in Counter(keys(data)).items() if count > 1]:
        raise RecordError(f"case {' '.join(map(str, again[0]))} appears {Counter(keys(data))[again[0]]} times", where=where,
                          hint="one measurement of a case belongs in a dataset")


def write(data: xr.Dataset, path: Path) -> None:
    """Write a dataset as netCDF4: encoded in memory, read back and compared, then put in place at once.

    String encodings are dropped first: a character width left over from reading one file would cut longer strings of another
    ("cuda" to "c", pydata/xarray issue 9037). Raises RecordError; the file that was there stays.
    """
    check(data, str(path))
    clean = data.copy(deep=False)
    clean.encoding = {}
    for name in clean.variables:
        clean[name].encoding = {}
    try:
        encoded = clean.to_netcdf(None, engine="netcdf4", format="NETCDF4")
    except (OSError, RuntimeError, ValueError) as e:
        raise RecordError(f"cannot encode the dataset: {e}", where=str(path)) from e
    content = sealed(encoded)
    if not decode(content, str(path)).identical(clean):
        raise RecordError("the dataset does not come back as it was written", where=str(path), hint="report this as a bug of moapipe")
    write_bytes(path, content)


def decode(content: bytes, where: str) -> xr.Dataset:
    """The dataset in netCDF4 bytes. Raises RecordError when they are cut short or damaged."""
    try:
        return xr.load_dataset(unsealed(content, where), engine="netcdf4")
    except (OSError, RuntimeError, ValueError, KeyError, AttributeError) as e:
        raise RecordError(f"is damaged: {e}", where=where, hint=AGAIN) from e


def read(path: Path) -> xr.Dataset:
    """A dataset from disk, loaded whole, with its schema and protocol checked. Raises RecordError."""
    try:
        content = path.read_bytes()
    except OSError as e:
        raise RecordError(f"cannot read: {e.strerror or e}", where=str(path), hint="run the stage that makes it") from e
    data = upgraded(decode(content, str(path)))
    check(data, str(path))
    return data


def upgraded(data: xr.Dataset) -> xr.Dataset:
    """A record of schema 3, which knew one host, no canaries and no plausibility, as one of schema 4; any other as it is."""
    if str(data.attrs.get("schema")) != "3":
        return data
    lone = {name: data[name].expand_dims("node", 1) for name in NODE_VARIABLES if name in data}
    sizes = {**data.sizes, "node": 1, "moment": len(MOMENTS)}
    known = {"host": str(data.attrs["host"])}
    new = {name: (row.dims, np.full([sizes[d] for d in row.dims], known.get(name, variable.fill(name)), dtype=None if row.kind == "text" else DTYPES[row.kind]),
                  variable.attributes(name)) for name, row in VARIABLES.items() if name not in data.variables}
    return data.assign(lone | new).assign_coords(moment=_moments()).assign_attrs(schema=4)


def join(records: Sequence[xr.Dataset]) -> xr.Dataset:
    """All cases of several records in one; records of the very same cases become its nodes (`_across`). Nodes, launches and samples are
    padded, sizes that a kernel lacks set to -1.

    Raises RecordError for records of different protocols, for a measurement that is there twice, and for a case that is in several
    records whose other cases differ.
    """
    if not records:
        raise RecordError("nothing to join", hint="name at least one record")
    for record in records:
        check(record)
    same: dict[tuple[Any, ...], list[xr.Dataset]] = {}
    for record in records:
        same.setdefault(tuple(keys(record)), []).append(record)
    lone = [_across(found) for found in same.values()]
    names = sorted({p for r in lone for p in parameters(r)})
    sizes = {dim: max(r.sizes[dim] for r in lone) for dim in RAGGED}
    padded = [_pad(r, names, sizes) for r in lone]
    out = xr.concat(padded, dim="case", data_vars="minimal", coords="minimal", compat="equals", join="exact", combine_attrs="override")
    out.attrs = _join_attributes([r.attrs for r in records])
    check(out)
    return out


Seats = dict[str, list[tuple[xr.Dataset, int]]]
"""Host -> where its launches of a case are: records with the index of the node in them, in turn."""


def _across(records: Sequence[xr.Dataset]) -> xr.Dataset:
    """Records of the very same cases as one: a node for each host, launches of several jobs on one host one after the other.

    RecordError where their builds or predictions differ, and for a measurement that is there twice.
    """
    first = records[0]
    if len(records) == 1:
        return first
    for name in (n for n, row in VARIABLES.items() if row.source == "identity"):
        other = next((r for r in records if (r[name].values != first[name].values).any()), None)
        if other is not None:
            raise RecordError(f"{name} on {other.attrs['host']} is not the one on {first.attrs['host']}",
                              hint="measure all nodes with the same builds and prediction")
    seats = [_seats(records, i) for i in range(first.sizes["case"])]
    sizes = {**{str(d): n for d, n in first.sizes.items()}, "node": max(map(len, seats)), "sample": max(r.sizes["sample"] for r in records),
             "launch": max(sum(r.sizes["launch"] for r, _ in parts) for s in seats for parts in s.values())}
    out = first.drop_vars(NODE_VARIABLES).assign({name: _seated(name, seats, sizes) for name in NODE_VARIABLES})
    measured = np.any([r["status"].values == STATUSES["measured"].code for r in records], axis=0)
    out["status"] = out["status"].copy(data=np.where(measured, STATUSES["measured"].code, out["status"].values).astype(np.int8))
    out["reason"] = out["reason"].copy(data=np.where(measured, "", out["reason"].values))
    return out.assign_attrs(_join_attributes([r.attrs for r in records]))


def _seats(records: Sequence[xr.Dataset], case: int) -> Seats:
    """Who has what of a case."""
    seats: Seats = {}
    for r in records:
        for node, host in enumerate(r["host"].values[case].tolist()):
            if node and not host:
                continue
            mine = seats.setdefault(host, [])
            seconds = r["seconds"].values[case, node]
            if np.isfinite(seconds).any() and any(np.array_equal(seconds, s["seconds"].values[case, n], equal_nan=True) for s, n in mine):
                raise RecordError(f"the measurement of case {' '.join(map(str, keys(r)[case]))} on {host} appears 2 times", hint="one job, one record")
            mine.append((r, node))
    return seats


def _seated(name: str, seats: Sequence[Seats], sizes: Mapping[str, int]) -> tuple[Any, ...]:
    """A variable that has the dim `node`, as its hosts have it."""
    row = VARIABLES[name]
    values: np.ndarray = np.full([sizes[d] for d in row.dims], variable.fill(name), dtype=object if row.kind == "text" else DTYPES[row.kind])
    for i, hosts in enumerate(seats):
        for node, (host, parts) in enumerate(hosts.items()):
            at = 0
            if name == "host":
                values[i, node] = host
                continue
            for r, n in parts:
                block = r[name].values[i, n]
                here: tuple[Any, ...] = (i, node, slice(at, at + len(block)), *map(slice, block.shape[1:]))
                values[here] = block
                at += len(block)
    return row.dims, values.astype(str) if row.kind == "text" else values, variable.attributes(name)


def _pad(record: xr.Dataset, names: Sequence[str], sizes: Mapping[str, int]) -> xr.Dataset:
    """A record with all of `names` as coordinates and with `sizes` nodes, launches and samples."""
    widths = {dim: (0, size - record.sizes[dim]) for dim, size in sizes.items()}
    fills: dict[str, Any] = {name: variable.fill(name) for name in NODE_VARIABLES}
    out = record.pad(widths, constant_values=fills).assign(
        {name: ("case", np.full(record.sizes["case"], NOT_A_PARAMETER), {"long_name": f"size parameter {name}", "units": "1"})
         for name in names if name not in record.variables})
    out["verdict"] = out["verdict"].astype(np.int8)
    for name in VARIABLES:
        out[name].attrs = variable.attributes(name)
    return out.set_coords(list(names))


def _join_attributes(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One value where all agree, all different values on lines of their own where they do not, the latest time of making."""
    out: dict[str, Any] = {}
    for name in dict.fromkeys(key for attrs in found for key in attrs):
        values = list(dict.fromkeys(attrs.get(name, "") for attrs in found))
        out[name] = values[0] if len(values) == 1 else max(values) if name == "created" else "\n".join(str(v) for v in values if v != "")
    return out


def collect(records: Sequence[xr.Dataset], predictions: Iterable[Mapping[str, Any]] = (),
            validations: Iterable[Mapping[str, Any]] = ()) -> xr.Dataset:
    """Predicted, measured and validated side by side, in one dataset.

    A prediction is a mapping with the names of KEY, `prediction_hash`, and variables whose source is "predicted"; a validation one
    with the build axes and variables whose source is "validated". Raises RecordError when a measured case carries the hash of
    another prediction than the one given: predictions are frozen before measuring.
    """
    data = join(records)
    predictions = list(predictions)
    rows = {tuple(p.get(k, variable.fill(k)) for k in KEY): p for p in predictions}
    own = [p for p in predictions if p["target"] != variable.YARDSTICK]
    shared = {tuple(p.get(k, variable.fill(k)) for k in variable.POINT): {name: p.get(name) for name in variable.SHARED} for p in own}
    checked = {tuple(v[k] for k in variable.BUILD_AXES): v for v in validations}
    for i, key in enumerate(keys(data)):
        values = dict(zip(KEY, key, strict=True))
        if values["target"] != variable.YARDSTICK:
            _set(data, i, shared.get(tuple(values[k] for k in variable.POINT), {}), "predicted")
        if (row := rows.get(key)) is not None:
            _same_prediction(data, i, row, key)
            _set(data, i, row, "predicted")
        if (row := checked.get(key[: len(variable.BUILD_AXES)])) is not None:
            _set(data, i, row, "validated")
    return data


def _same_prediction(data: xr.Dataset, i: int, row: Mapping[str, Any], key: tuple[Any, ...]) -> None:
    frozen = str(data["prediction_hash"].values[i])
    if frozen and frozen != row.get("prediction_hash"):
        raise RecordError(f"the prediction changed after the measurement: expected {frozen[:12]}, found {str(row.get('prediction_hash'))[:12]}",
                          where=" ".join(map(str, key)), hint="measure again, or bring back the prediction that was frozen")


def _set(data: xr.Dataset, i: int, row: Mapping[str, Any], source: str) -> None:
    for name, entry in VARIABLES.items():
        if entry.source == source and row.get(name) is not None:
            value = row[name]
            if entry.kind == "text":  # numpy cuts a string to the width of the array that it is put into
                data[name] = data[name].astype(np.result_type(data[name].dtype, np.array(value)))
            data[name].values[i] = [value.get(level, np.nan) for level in LEVELS] if "level" in entry.dims else value
