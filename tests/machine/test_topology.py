"""Topologies from recorded hwloc output, masks and lists as the kernel prints them, quotas of both control-group versions."""

import os

import pytest

from moapipe.errors import LabError
from moapipe.machine.topology import allowed_cpus, cpu_quota, from_xml, parse_list, parse_mask, probe, throttled_periods

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
        out.append(f'<object type="Package" cpuset="{mask}"><info name="CPUModel" value="Test"/><object type="NUMANode" cpuset="{mask}" local_memory="1073741824"/>'
                   f'<object type="L3Cache" cpuset="{mask}" cache_size="33554432" cache_linesize="64">{inside}</object></object>')
    out += ['<object type="NUMANode" cpuset="0x0" local_memory="1073741824"/>'] * memoryless
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


@pytest.mark.parametrize("threads, expected", [(1, (0,)), (2, (0, 1)), (4, (0, 1, 2, 3)), (6, (0, 1, 2, 3, 4, 5)), (9, (0, 1, 2, 3, 4, 5, 6, 7))])
def test_threads_get_cores_before_hardware_threads(threads, expected):
    assert from_xml(smt(4, 2), range(8)).places(threads) == expected


@pytest.mark.parametrize("allowed, threads, expected", [([2, 3, 6], 2, (2, 3)), ([1, 5], 2, (1, 5)), ([7], 3, (7,))])
def test_places_stay_inside_a_mask_with_holes(allowed, threads, expected):
    assert from_xml(smt(4, 2), allowed).places(threads) == expected


def test_no_thread_has_no_place():
    with pytest.raises(LabError, match="0 threads"):
        from_xml(smt(4, 2), range(8)).places(0)


@pytest.mark.parametrize("level, threads, expected", [("L2", 4, 1), ("L2", 8, 2), ("L3", 1, 1), ("L3", 3, 3), ("L3", 4, 4), ("L3", 8, 8), ("L4", 8, 1)])
def test_sharers_of_a_cache(level, threads, expected):
    assert from_xml(smt(4, 2), range(8)).sharers(level, threads) == expected


def test_throttling_is_counted_over_all_levels(tmp_path):
    (tmp_path / "cgroup").write_text("0::/a/b\n4:cpu,cpuacct:/c\n")
    for folder, text in (("a/b", "nr_periods 9\nnr_throttled 3\n"), ("a", "nr_throttled 4\n"), ("cpu/c", "nr_throttled 5\n")):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "cpu.stat").write_text(text)
    assert throttled_periods(tmp_path, tmp_path / "cgroup") == 12
    assert throttled_periods(tmp_path / "none", tmp_path / "cgroup") == 0
