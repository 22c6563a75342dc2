"""Topologies from recorded hwloc output, masks and lists as the kernel prints them, quotas of both control-group versions."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine import machines

from moapipe.cli.text import show
from moapipe.errors import LabError
from moapipe.machine import topology
from moapipe.machine.mask import list_text, parse_list, parse_mask
from moapipe.machine.quota import cpu_quota, throttled_periods
from moapipe.machine.sketch import draw
from moapipe.machine.topology import Topology, allowed_cpus, allowed_nodes, from_sys, from_xml, probe

CORE = '<object type="Core" os_index="{i}" cpuset="{m}"><object type="PU" os_index="{i}" cpuset="{m}"/></object>'


def machine(nodes: int, cores: int, memoryless: int = 0) -> str:
    """hwloc's XML of `nodes` memory nodes of `cores` cores with private L1 and L2 and one L3 a node; then nodes without CPUs."""
    out, cpu = [], 0
    for n in range(nodes):
        mask = hex(((1 << cores) - 1) << (n * cores))
        inside = ""
        for _ in range(cores):
            m = hex(1 << cpu)
            inside += (f'<object type="L2Cache" cpuset="{m}" cache_size="1048576" cache_linesize="64"><object type="L1Cache" cpuset="{m}" '
                       f'cache_size="32768" cache_linesize="64">{CORE.format(i=cpu, m=m)}</object></object>')
            cpu += 1
        out.append(f'<object type="Package" cpuset="{mask}"><info name="CPUModel" value="Test"/><object type="NUMANode" os_index="{n}" cpuset="{mask}" local_memory="1073741824"/>'
                   f'<object type="L3Cache" cpuset="{mask}" cache_size="33554432" cache_linesize="64">{inside}</object></object>')
    out += [f'<object type="NUMANode" os_index="{nodes + k}" cpuset="0x0" local_memory="1073741824"/>' for k in range(memoryless)]
    return f'<topology version="2.0"><object type="Machine" cpuset="{hex((1 << nodes * cores) - 1)}">{"".join(out)}</object></topology>'


@pytest.mark.parametrize("nodes, cores", [(1, 1), (1, 2), (2, 4), (8, 16)])
def test_a_whole_machine_is_seen(nodes, cores):
    t = from_xml(machine(nodes, cores), range(nodes * cores))
    assert (t.sockets, t.numa_nodes, t.cores, len(t.cpus)) == (nodes, nodes, nodes * cores, nodes * cores)
    assert [(c.level, c.shared_by) for c in t.caches] == [("L1", 1), ("L2", 1), ("L3", cores)]
    assert t.memory_bytes == nodes << 30
    assert "Test" in t.line()


def test_a_mask_with_a_hole_restricts_what_is_seen():
    t = from_xml(machine(2, 4), [1, 2])
    assert t.domains("l3") == ((1, 2),)
    assert (t.sockets, t.numa_nodes, t.cores, t.cpus) == (1, 1, 2, (1, 2))
    assert t.cache("L3").shared_by == 2


def test_memory_nodes_without_cpus_are_not_ours():
    assert from_xml(machine(2, 2, memoryless=2), range(4)).numa_nodes == 2


def test_damaged_output_is_refused():
    with pytest.raises(LabError, match="cannot be read"):
        from_xml("<topology>", [0])


@pytest.mark.parametrize("mask, cpus", [("0x0", set()), ("0x00000003", {0, 1}), ("0x1,0x80000000", {31, 32}), ("0x1,,0x1", {0, 64}), ("0xf...f,0x1", {0})])
def test_masks(mask, cpus):
    assert parse_mask(mask) == cpus


@pytest.mark.parametrize("text, cpus", [("", set()), ("0", {0}), ("0-2,5", {0, 1, 2, 5}), ("3-3", {3})])
def test_lists(text, cpus):
    assert parse_list(text) == cpus


def test_this_machine_agrees_with_its_mask():
    t = probe()
    assert set(t.cpus) == os.sched_getaffinity(0) == set(allowed_cpus())
    assert 1 <= t.cores <= len(t.cpus)


@pytest.mark.parametrize("limit, quota", [("max 100000", None), ("150000 100000", 1.5)])
def test_quota_of_version_2(tmp_path, limit, quota):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "cpu.max").write_text(limit)
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000")
    (tmp_path / "self").write_text("0::/a/b\n")
    assert cpu_quota(tmp_path, tmp_path / "self") == quota


@pytest.mark.parametrize("limit, quota", [("-1", None), ("50000", 0.5)])
def test_quota_of_version_1(tmp_path, limit, quota):
    (tmp_path / "cpu" / "job").mkdir(parents=True)
    (tmp_path / "cpu" / "job" / "cpu.cfs_quota_us").write_text(limit)
    (tmp_path / "cpu" / "job" / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "self").write_text("3:cpu,cpuacct:/job\n2:memory:/job\n")
    assert cpu_quota(tmp_path, tmp_path / "self") == quota


def smt(cores: int, ways: int) -> str:
    """hwloc's XML of cores with several hardware threads, numbered as Linux does: second threads after all first ones."""
    objects = ""
    for c in range(cores):
        mask = hex(sum(1 << (c + w * cores) for w in range(ways)))
        objects += f'<object type="L2Cache" cpuset="{mask}" cache_size="1048576"><object type="Core" cpuset="{mask}"/></object>'
    return f'<topology><object type="L3Cache" cpuset="{hex((1 << cores * ways) - 1)}" cache_size="33554432">{objects}</object></topology>'


@pytest.mark.parametrize("level, threads, expected", [("L2", 4, 1), ("L2", 8, 2), ("L3", 1, 1), ("L3", 3, 3), ("L3", 4, 4), ("L3", 8, 8), ("L4", 8, 1)])
def test_sharers_of_a_cache(level, threads, expected):
    assert from_xml(smt(4, 2), range(8)).sharers(level, range(threads)) == expected


def test_throttling_is_counted_over_all_levels(tmp_path):
    (tmp_path / "cgroup").write_text("0::/a/b\n4:cpu,cpuacct:/c\n")
    for folder, text in (("a/b", "nr_periods 9\nnr_throttled 3\n"), ("a", "nr_throttled 4\n"), ("cpu/c", "nr_throttled 5\n")):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "cpu.stat").write_text(text)
    assert throttled_periods(tmp_path, tmp_path / "cgroup") == 12
    assert throttled_periods(tmp_path / "none", tmp_path / "cgroup") == 0


# ------------------------------------------------------------------ the array


@pytest.mark.parametrize(("description", "axes", "shape"), [
    (machines.MILAN_NPS1, ("socket", "numa", "l3", "core", "pu"), (2, 1, 8, 8, 1)),
    (machines.MILAN_NPS4, ("socket", "numa", "l3", "core", "pu"), (2, 4, 2, 8, 1)),
    (machines.XEON_8468, ("socket", "numa", "l3", "core", "pu"), (2, 1, 1, 48, 1)),
    (machines.SMT, ("socket", "numa", "l3", "core", "pu"), (2, 1, 2, 4, 2)),
    ("pack:2 l3:2 numa:2 core:4 pu:1", ("socket", "l3", "numa", "core", "pu"), (2, 2, 2, 4, 1)),       # a cache over two nodes
    ("numa:1 pack:2 l3:2 core:4 pu:1", ("numa", "socket", "l3", "core", "pu"), (1, 2, 2, 4, 1)),       # one node over two sockets
])
def test_axes_stand_in_the_order_in_which_they_contain_each_other(description, axes, shape):
    t = machines.synthetic(description)
    assert (t.axes, t.shape) == (axes, shape)
    assert sorted(t.array) == list(t.cpus)


def test_hardware_threads_are_the_innermost_axis():
    assert machines.synthetic(machines.SMT).domains("core")[:3] == ((0, 16), (1, 17), (2, 18))


def test_ids_that_are_not_contiguous_stay_with_their_node():
    t = machines.synthetic(machines.INTERLEAVED)
    assert t.domains("numa") == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert [t.home(c) for c in range(8)] == [0, 1] * 4


def test_a_cpuset_with_holes_packs_its_cpus_to_the_front():
    t = machines.synthetic(machines.MILAN_NPS4, [*range(16, 24), *range(42, 48)])
    assert (t.axes, t.shape) == (topology.AXES, (1, 2, 1, 8, 1))
    assert t.array == (*range(16, 24), *range(42, 48), -1, -1)
    assert (t.numa_nodes, t.cores, t.sharers("L3", t.cpus)) == (2, 14, 8)


def test_gpus_in_the_order_of_their_bus_know_their_node():
    t = machines.whole(machines.reversed_gpus())
    assert [g.nodes for g in t.gpus] == [(3,), (2,), (1,), (0,)]


def test_memory_of_devices_is_a_node_without_cpus():
    t = machines.whole(machines.grace_hopper())
    assert (t.numa_nodes, t.shape) == (4, (4, 1, 1, 72, 1))
    assert [(n.id, n.kind) for n in t.nodes if not n.cpus] == [(4, "GPUMemory"), (12, "GPUMemory"), (20, "GPUMemory"), (28, "GPUMemory")]
    assert t.memory_bytes == 4 * 120 << 30


def test_cpus_without_memory_keep_their_node():
    t = machines.whole(machines.memoryless())
    assert t.domains("numa") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert [n.bytes for n in t.nodes] == [0, 64 << 30]


def test_nodes_that_the_control_group_takes_away_are_marked():
    t = from_xml(machines.synthetic_xml(machines.MILAN_NPS1), range(128), frozenset({1}))
    assert [n.allowed for n in t.nodes] == [False, True]


def test_distances_are_in_the_order_of_the_nodes():
    xml = machines.synthetic_xml(machines.MILAN_NPS1).replace("</topology>", machines.distances(((10, 32), (32, 10))) + "</topology>")
    assert from_xml(xml, range(128)).distances == ((10, 32), (32, 10))


@settings(deadline=None)        # hwloc's program runs in the first example
@given(st.sets(st.integers(0, 127), min_size=1))
def test_whatever_the_mask_the_array_holds_it_once(mask):
    t = machines.synthetic(machines.MILAN_NPS4, mask)
    assert sorted(c for c in t.array if c != topology.HOLE) == sorted(mask)
    for axis in t.axes:
        assert sorted(c for part in t.domains(axis) for c in part) == sorted(mask)


@pytest.mark.parametrize("make", [machines.reversed_gpus, machines.grace_hopper, machines.memoryless])
def test_json_and_back(make):
    t = machines.whole(make())
    assert Topology.from_json(json.loads(json.dumps(t.to_json()))) == t


@given(st.sets(st.integers(0, 300)))
def test_lists_and_back(cpus):
    assert parse_list(list_text(cpus)) == cpus


def test_masks_of_128_cpus_go_through():
    assert parse_mask("0xffffffff,0x0,0x0,0xffffffff") == {*range(32), *range(96, 128)}


def tree(root: Path, cpus: int, nodes: int) -> Path:
    """The kernel's files of a machine with one socket and `nodes` memory nodes."""
    each = cpus // nodes
    for c in range(cpus):
        here, first = root / "cpu" / f"cpu{c}", c // each * each
        for name, text in {"topology/core_cpus_list": str(c), "topology/physical_package_id": "0", "cache/index3/size": "32768K", "cache/index3/type": "Unified",
                           "cache/index3/level": "3", "cache/index3/coherency_line_size": "64", "cache/index3/shared_cpu_list": f"{first}-{first + each - 1}"}.items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_text(text)
    for n in range(nodes):
        here = root / "node" / f"node{n}"
        here.mkdir(parents=True)
        (here / "cpulist").write_text(f"{n * each}-{n * each + each - 1}")
        (here / "meminfo").write_text(f"Node {n} MemTotal:       1048576 kB")
        (here / "distance").write_text(" ".join("10" if m == n else "12" for m in range(nodes)))
    return root


def test_the_kernels_own_files_say_the_same(tmp_path):
    t = from_sys(tuple(range(1, 8)), frozenset({0, 1}), tree(tmp_path, 8, 2))
    assert (t.shape, t.domains("numa")) == ((1, 2, 1, 4, 1), ((1, 2, 3), (4, 5, 6, 7)))
    assert t.distances == ((10, 12), (12, 10))
    assert t.sharers("L3", t.cpus) == 4


def test_allowed_nodes_are_read(tmp_path):
    (tmp_path / "status").write_text("Name:\tx\nMems_allowed_list:\t0,2-3\n")
    assert allowed_nodes(tmp_path / "status") == {0, 2, 3}
    assert allowed_nodes(tmp_path / "none") is None


def test_a_drawing_names_every_part():
    text = draw(machines.whole(machines.reversed_gpus()))
    assert "array ⟨1 4 2 8 1⟩ of socket, numa, l3, core, pu: 64 CPUs of ours, 0 holes" in text
    assert "numa 3  32 GiB, GPU 0" in text
    assert "8 cores: CPUs 56-63" in text
    assert "memory node 12: 96 GiB (GPUMemory), no CPUs" in draw(machines.whole(machines.grace_hopper()))
    assert "CPUs 0-3 | 16-19" in draw(machines.synthetic(machines.SMT))


def test_the_command_line_draws_it(capsys):
    show(topology=True)
    shown = capsys.readouterr().out
    assert "array ⟨" in shown
    assert "spread" in shown
    show(topology=True, format="json")
    assert Topology.from_json(json.loads(capsys.readouterr().out)) == probe()
