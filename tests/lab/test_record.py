"""The record: schema, writing and reading, joining, collecting, and everything that can be wrong with a file."""

import errno
import os

import numpy as np
import pytest
import xarray as xr
from tests.synthetic import dataset

from moapipe.errors import RecordError
from moapipe.lab import file, record, variable
from moapipe.lab.record import Canary, Case, Sample
from moapipe.lab.variable import KEY, SCHEMA, STATUSES, VARIABLES
from moapipe.lab.verdict import VERDICTS

IDENTITY = {"kernel": "k", "form": "f", "variant": "v", "target": "c", "isa": "avx2", "dtype": "f32", "machine": "m", "label": "n=4", "threads": 1}


def one(status="measured", verdict="valid", **changes):
    samples = [[Sample(1e-3, 2, verdict)]] if status in ("measured", "all_invalid") else []
    return Case(IDENTITY | changes, {"n": 4}, status, "" if status == "measured" else "because", samples)


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_has_its_dims_units_and_names_on_disk(name, tmp_path):
    record.write(dataset(), tmp_path / "d.nc")
    found = record.read(tmp_path / "d.nc")[name]
    row = VARIABLES[name]
    assert found.dims == row.dims
    assert found.attrs["long_name"] == row.long_name
    assert found.attrs.get("units", "") == row.units
    assert row.kind != "number" or row.units, "a number has units"


@pytest.mark.parametrize(("name", "table"), [("status", STATUSES), ("verdict", VERDICTS), ("plausibility", variable.PLAUSIBILITIES)])
def test_flags_follow_cf(name, table, tmp_path):
    record.write(dataset(), tmp_path / "d.nc")
    attrs = record.read(tmp_path / "d.nc")[name].attrs
    assert dict(zip(attrs["flag_meanings"].split(), attrs["flag_values"].tolist(), strict=True)) == {k: r.code for k, r in table.items()}
    assert len({r.code for r in table.values()}) == len(table)
    assert all(r.text.endswith(".") for r in table.values())


def test_a_dataset_comes_back_identical_and_leaves_nothing_beside_it(tmp_path):
    data = dataset()
    record.write(data, tmp_path / "d.nc")
    assert record.read(tmp_path / "d.nc").identical(data)
    assert os.listdir(tmp_path) == ["d.nc"]


def test_nothing_is_nan_without_a_reason():
    data = dataset()
    unmeasured = data["status"] != STATUSES["measured"].code
    assert unmeasured.any()
    assert (data["reason"].where(unmeasured, "x") != "").all()
    taken = data["verdict"] != VERDICTS["not_taken"].code
    assert (taken == data["seconds"].notnull()).all()


def test_a_character_width_left_in_an_encoding_cuts_no_string(tmp_path):
    """pydata/xarray issue 9037: a variable read from a file with 1-character strings cut "cuda" to "c" when written again."""
    short = record.make([one(target="c")], {})
    long = record.make([one(target="cuda")], {})
    assert long["target"].values.tolist() == ["cuda"]
    for encoding in ({"dtype": "S1", "char_dim_name": "string1"}, {"dtype": np.dtype("<U1")}):
        short["target"].encoding = dict(encoding)
        joined = record.join([short, long])
        joined["target"].encoding = dict(encoding)
        record.write(joined, tmp_path / "d.nc")
        assert record.read(tmp_path / "d.nc")["target"].values.tolist() == ["c", "cuda"]


def test_a_file_written_by_netcdf_as_characters_keeps_its_strings_through_the_record(tmp_path):
    data = record.make([one(target="c")], {})
    data.to_netcdf(tmp_path / "chars.nc", encoding={"target": {"dtype": "S1"}})
    joined = record.join([record.read(tmp_path / "chars.nc"), record.make([one(target="cuda")], {})])
    record.write(joined, tmp_path / "d.nc")
    assert record.read(tmp_path / "d.nc")["target"].values.tolist() == ["c", "cuda"]


@pytest.mark.parametrize("keep", [0, 3, 20, 100, 4096, 0.5, 0.99, -1])
def test_a_truncated_file_is_one_clear_error(keep, tmp_path):
    path = tmp_path / "d.nc"
    record.write(dataset(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(RecordError, match=r"d\.nc.*(damaged|cut short)"):
        record.read(path)


@pytest.mark.parametrize("content", [b"# README\n", b"CDF\1", b"x" * 5000])
def test_what_is_no_dataset_is_not_to_be_deleted_before_a_second_look(content, tmp_path):
    (tmp_path / "README.md").write_bytes(content)
    with pytest.raises(RecordError, match=r"README\.md.*is no netCDF4 file") as e:
        record.read(tmp_path / "README.md")
    assert e.value.hint.startswith("name a record.nc or a dataset.nc; if it is one, delete it")


def test_a_missing_file_names_itself(tmp_path):
    with pytest.raises(RecordError, match=r"nothing\.nc"):
        record.read(tmp_path / "nothing.nc")


def test_a_flipped_bit_anywhere_is_found_before_the_decoder_sees_it(tmp_path):
    """The decoder itself crashes or hangs on some damaged files, so it must never see one."""
    path = tmp_path / "d.nc"
    record.write(dataset(sizes=(512,)), path)
    content = path.read_bytes()
    for at in range(0, len(content), max(1, len(content) // 200)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1:])
        with pytest.raises(RecordError, match=r"damaged|cut short"):
            record.read(path)


def test_other_programs_open_a_record(tmp_path):
    record.write(dataset(), tmp_path / "d.nc")
    assert xr.load_dataset(tmp_path / "d.nc", engine="netcdf4").identical(dataset())


def test_noise_in_a_file_never_passes_silently(tmp_path):
    record.write(dataset(), tmp_path / "d.nc")
    content = bytearray((tmp_path / "d.nc").read_bytes())
    content[:64] = b"\0" * 64
    (tmp_path / "d.nc").write_bytes(content)
    with pytest.raises(RecordError):
        record.read(tmp_path / "d.nc")


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "d.nc"
    record.write(dataset(), path)
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file.os, "fsync", full)
    with pytest.raises(RecordError, match="No space left on device"):
        record.write(dataset(machine="other"), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["d.nc"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_the_kernel_s_own_full_device_is_reported(tmp_path, monkeypatch):
    real = file.os.fdopen
    monkeypatch.setattr(file.os, "fdopen", lambda handle, mode: (os.close(handle), real(os.open("/dev/full", os.O_WRONLY), mode))[1])
    with pytest.raises(RecordError, match="No space left on device"):
        record.write(dataset(), tmp_path / "d.nc")
    assert os.listdir(tmp_path) == []


def test_join_pads_launches_samples_and_sizes():
    a = dataset("a", counts=(2, 20))
    b = record.make([one(machine="b")], {})
    joined = record.join([a, b])
    assert joined.sizes["case"] == a.sizes["case"] + 1
    assert (joined.sizes["launch"], joined.sizes["sample"]) == (2, 20)
    last = joined.isel(case=-1)
    assert last["verdict"].values.ravel().tolist().count(VERDICTS["not_taken"].code) == 39
    assert int(last["B"]) == -1
    assert int(last["n"]) == 4
    assert joined["verdict"].dtype == np.int8
    assert joined.isel(case=slice(0, -1))["seconds"].equals(a["seconds"])
    assert joined["seconds"].attrs == a["seconds"].attrs


def of(host, *launches, status="measured", seconds=1.0, **changes):
    """A record of one case on a host: so many samples in each launch, with canaries."""
    samples = [[Sample(seconds + k, 2, "valid" if status == "measured" else "neighbour")] * n for k, n in enumerate(launches)]
    pairs = [(Canary(1e-6, 2e-6, 1e9, 3e9, 0.0), Canary(2e-6, 3e-6, 2e9, 3e9, 0.5))] * len(launches)
    case = Case(IDENTITY | {"memory_drift": [1.5] * len(launches)} | changes, {"n": 4}, status, "" if status == "measured" else "because", samples, pairs)
    return record.make([case], {"host": host, "created": host})


def test_canaries_stand_beside_their_launches(tmp_path):
    record.write(of("a", 3, 2), tmp_path / "d.nc")
    found = record.read(tmp_path / "d.nc")
    assert found["moment"].values.tolist() == ["before", "after"]
    assert found["canary_other_cpus"].values.tolist() == [[[[0.0, 0.5], [0.0, 0.5]]]]


def test_records_of_several_nodes_become_one(tmp_path):
    """A node for each host; what a host measured in another job are further launches."""
    record.write(record.join([of("a", 3, 2), of("b", 4), of("a", 1, seconds=7.0)]), tmp_path / "d.nc")
    data = record.read(tmp_path / "d.nc")
    assert {d: data.sizes[d] for d in ("case", "node", "launch", "sample")} == {"case": 1, "node": 2, "launch": 3, "sample": 4}
    assert data["host"].values.tolist() == [["a", "b"]]
    assert data["seconds"].notnull().sum("sample").values.tolist() == [[[3, 2, 1], [4, 0, 0]]]
    assert data["seconds"].values[0, 0, :, 0].tolist() == [1.0, 2.0, 7.0]
    assert data["verdict"].values[0, 1, 1].tolist() == [VERDICTS["not_taken"].code] * 4
    assert data["memory_drift"].values[0, 0].tolist() == [1.5] * 3 and np.isnan(data["memory_drift"].values[0, 1, 1:]).all()
    assert np.isnan(data["canary_bandwidth"].values[0, 1, 1]).all()
    assert data.attrs["host"] == "a\nb"
    assert record.join([data, of("c", 2)]).sizes["node"] == 3


def test_what_one_node_could_measure_is_measured():
    data = record.join([of("a", 2, status="all_invalid"), of("b", 2)])
    assert data["status"].values.tolist() == [STATUSES["measured"].code]
    assert data["reason"].values.tolist() == [""]
    assert record.join([of("a", 2, status="all_invalid"), of("b", 2, status="all_invalid")])["reason"].values.tolist() == ["because"]


@pytest.mark.parametrize(("others", "message"), [
    ([of("b", 2, source_hash="x")], "source_hash on b is not the one on a"), ([of("b", 2, prediction_hash="x")], "prediction_hash on b"),
    ([of("a", 2)], "on a appears 2 times"), ([of("b", 2), of("c", 2), of("b", 2)], "on b appears 2 times"),
])
def test_nodes_that_measured_something_else_or_are_there_twice_are_refused(others, message):
    with pytest.raises(RecordError, match=message):
        record.join([of("a", 2), *others])


def test_cases_of_different_nodes_join():
    joined = record.join([of("a", 3), of("b", 2, label="n=8"), of("c", 2, label="n=8")])
    assert joined["host"].values.tolist() == [["a", ""], ["b", "c"]]


def test_a_record_of_the_schema_before_is_read(tmp_path):
    """It knew one host, no canaries, no plausibility; its samples are the same, and it joins with those of today."""
    data = dataset(sizes=(512,))
    new = [name for name, row in VARIABLES.items() if "moment" in row.dims or row.source == "judged" or name == "host"]
    old = data.isel(node=0).drop_vars([*new, "moment"]).assign_attrs(schema=3)
    assert set(old.dims) == {"case", "launch", "sample", "level"}
    old.to_netcdf(tmp_path / "d.nc")
    found = record.read(tmp_path / "d.nc")
    assert found["seconds"].identical(data["seconds"]) and found["foreseen_seconds"].identical(data["foreseen_seconds"])
    assert found["host"].values.tolist() == [["laptop"]] * data.sizes["case"]
    assert set(found["plausibility"].values.tolist()) == {0} and found["canary_bandwidth"].isnull().all()
    record.write(record.join([found, of("b", 2)]), tmp_path / "again.nc")


def test_join_keeps_raw_samples_and_all_attributes():
    a, b = dataset("a"), dataset("b")
    joined = record.join([a, b])
    assert joined.attrs["host"] == "a\nb"
    assert joined.attrs["Conventions"] == "CF-1.11"
    assert np.array_equal(joined["seconds"].values[: a.sizes["case"]], a["seconds"].values, equal_nan=True)


def test_join_refuses_a_case_twice():
    with pytest.raises(RecordError, match="appears 2 times"):
        record.join([dataset("a"), dataset("a")])


@pytest.mark.parametrize("name", ["protocol", "schema"])
def test_join_and_read_refuse_another_protocol(name, tmp_path):
    other = dataset("b")
    other.attrs[name] = "0"
    with pytest.raises(RecordError, match=f"{name}: expected"):
        record.join([dataset("a"), other])
    other.to_netcdf(tmp_path / "d.nc")
    with pytest.raises(RecordError, match=f"{name}: expected"):
        record.read(tmp_path / "d.nc")


def test_a_foreign_netcdf_file_is_refused(tmp_path):
    xr.Dataset({"x": ("i", [1.0])}).to_netcdf(tmp_path / "d.nc")
    with pytest.raises(RecordError, match=f"expected {SCHEMA}, found none"):
        record.read(tmp_path / "d.nc")


def test_a_missing_variable_is_named():
    data = dataset().drop_vars("traffic_bytes")
    with pytest.raises(RecordError, match="traffic_bytes"):
        record.check(data)


@pytest.mark.parametrize(("case", "message"), [
    (one(status="lost"), "unknown status 'lost'"),
    (one(verdict="fine"), "unknown verdict 'fine'"),
    (one(colour="red"), "unknown variable 'colour'"),
    (Case(IDENTITY, {}, "not_run"), "has no reason"),
    (Case(IDENTITY, {}, "measured"), "without a valid sample"),
    (Case(IDENTITY, {}, "measured", "", [[Sample(1.0, 1, "neighbour")]]), "all_invalid"),
    (Case(IDENTITY, {"flops": 3}, "not_run", "x"), "name of a variable"),
])
def test_a_wrong_case_is_refused_with_its_reason(case, message):
    with pytest.raises(RecordError, match=message):
        record.make([case], {})


def test_an_unknown_attribute_is_refused():
    with pytest.raises(RecordError, match="unknown attribute 'colour'"):
        record.make([one()], {"colour": "red"})


def test_collect_refuses_a_prediction_that_changed_after_the_measurement():
    measured = record.make([one(prediction_hash="a" * 64)], {})
    row = IDENTITY | {"prediction_hash": "b" * 64, "predicted_seconds": 1.0}
    with pytest.raises(RecordError, match="changed after the measurement"):
        record.collect([measured], [row])
    same = record.collect([measured], [row | {"prediction_hash": "a" * 64, "traffic_bytes": {"L2": 5.0}}])
    assert same["predicted_seconds"].values.tolist() == [1.0]
    assert np.isnan(same["traffic_bytes"].sel(level="L1").item())
    assert same["traffic_bytes"].sel(level="L2").item() == 5.0


def test_pytorch_gets_what_all_participants_of_a_point_have_in_common():
    torch = IDENTITY | {"target": "torch", "variant": "mul", "isa": "native"}
    measured = record.make([one(), Case(torch, {"n": 4}, "not_run", "x"), Case(torch | {"threads": 2}, {"n": 4}, "not_run", "x")], {})
    row = IDENTITY | {"prediction_hash": "", "useful_flops": 7.0, "predicted_seconds": 1.0, "lower_bound_bytes": {"L1": 3.0}}
    data = record.collect([measured], [row])
    assert data["useful_flops"].values.tolist()[:2] == [7.0, 7.0]
    assert data["lower_bound_bytes"].sel(level="L1").values.tolist()[:2] == [3.0, 3.0]
    assert np.isnan(data["predicted_seconds"].values[1])
    assert np.isnan(data["useful_flops"].values[2])


def test_collect_puts_validation_beside_every_size_of_a_build():
    cases = [one(label="n=4"), one(label="n=8")]
    checked = {k: IDENTITY[k] for k in variable.BUILD_AXES} | {"error": 1e-7, "error_bound": 1e-6, "baseline_error": 2e-7}
    data = record.collect([record.make(cases, {})], (), [checked])
    assert data["error"].values.tolist() == [1e-7, 1e-7]


@pytest.mark.parametrize("name", [n for n, row in VARIABLES.items() if row.kind == "text" and row.source in ("predicted", "validated")])
def test_collect_cuts_no_text(name):
    measured = record.make([one(), one(label="n=8")], {})
    given = {k: IDENTITY[k] for k in KEY if k in IDENTITY} | {"prediction_hash": "", name: "a text of some length"}
    row, checked = ((given,), ()) if VARIABLES[name].source == "predicted" else ((), (given,))
    assert record.collect([measured], row, checked)[name].values.tolist()[0] == "a text of some length"


def test_key_names_are_variables():
    assert set(KEY) <= set(VARIABLES)
