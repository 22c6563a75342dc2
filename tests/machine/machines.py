"""Machines that nobody here has: hwloc's synthetic ones, and XML written by hand for what synthetic descriptions cannot say."""

import functools
import shutil
import subprocess
import xml.etree.ElementTree as ET

import pytest

from moapipe.machine.topology import PROGRAMS, Topology, from_xml

PROGRAM = next((p for p in PROGRAMS if shutil.which(p)), None)


@functools.cache
def synthetic_xml(description: str) -> str:
    """What hwloc makes of a synthetic description. Skips the test where hwloc's program is not installed."""
    if PROGRAM is None:
        pytest.skip("hwloc's program is not installed")
    return subprocess.run([PROGRAM, "-i", description, "--of", "xml"], capture_output=True, text=True, check=True).stdout


def synthetic(description: str, allowed=None) -> Topology:
    """A synthetic machine, whole or restricted to some CPUs."""
    xml = synthetic_xml(description)
    return whole(xml) if allowed is None else from_xml(xml, allowed)


def whole(xml: str) -> Topology:
    """With every CPU that the document has."""
    present = [int(o.get("os_index")) for o in ET.fromstring(xml).iter("object") if o.get("type") == "PU"]
    return from_xml(xml, present)


MILAN_NPS1 = "pack:2 [numa(memory=137438953472)] l3:8(size=33554432) l2:8(size=524288) l1:1(size=32768) core:1 pu:1"
MILAN_NPS4 = "pack:2 group:4 [numa(memory=34359738368)] l3:2(size=33554432) l2:8(size=524288) l1:1(size=32768) core:1 pu:1"
XEON_8468 = "pack:2 [numa(memory=549755813888)] l3:1(size=110100480) l2:48(size=2097152) l1:1(size=49152) core:1 pu:1"
SMT = "pack:2 [numa(memory=34359738368)] l3:2(size=33554432) core:4 pu:2(indexes=16*1:2*16)"
INTERLEAVED = "pack:2 [numa(memory=34359738368)] l3:1(size=33554432) core:4 pu:1(indexes=0,2,4,6,1,3,5,7)"


def mask(cpus) -> str:
    return hex(sum(1 << c for c in cpus))


def node(number: int, cpus, memory: int = 32 << 30, kind: str = "") -> str:
    return f'<object type="NUMANode" os_index="{number}" cpuset="{mask(cpus)}" local_memory="{memory}" subtype="{kind}"/>'


def gpu(bus: str, name: str = "GA100", vendor: str = "10de") -> str:
    return (f'<object type="Bridge"><object type="PCIDev" pci_busid="{bus}" pci_type="0302 [{vendor}:20b0] [10de:1463] a1">'
            f'<info name="PCIDevice" value="{name}"/></object></object>')


def cores(cpus) -> str:
    return "".join(f'<object type="Core" cpuset="{mask([c])}"><object type="PU" os_index="{c}" cpuset="{mask([c])}"/></object>' for c in cpus)


def l3(cpus, megabytes: int = 32) -> str:
    return f'<object type="L3Cache" cpuset="{mask(cpus)}" cache_size="{megabytes << 20}" cache_linesize="64">{cores(cpus)}</object>'


def package(cpus, inside: str) -> str:
    return f'<object type="Package" cpuset="{mask(cpus)}"><info name="CPUModel" value="Test"/>{inside}</object>'


def document(inside: str, extra: str = "") -> str:
    return f'<topology version="2.0"><object type="Machine" cpuset="0xf...f">{inside}</object>{extra}</topology>'


def reversed_gpus() -> str:
    """One Milan socket, four nodes of 16 cores, GPU k next to node 3−k, and a console that is no GPU."""
    groups = ""
    for k in range(4):
        mine = range(16 * k, 16 * k + 16)
        console = gpu("0000:00:02.0", "console", "1a03") if k == 0 else ""
        groups += (f'<object type="Group" cpuset="{mask(mine)}">{node(k, mine)}{l3(mine[:8])}{l3(mine[8:])}'
                   f'{gpu(f"0000:{(3 - k) * 64 + 1:02x}:00.0")}{console}</object>')
    return document(package(range(64), groups))


def grace_hopper() -> str:
    """Four superchips of 72 cores; each has its memory node, and its GPU's memory is a node without CPUs."""
    chips = ""
    for k in range(4):
        mine = range(72 * k, 72 * k + 72)
        chips += package(mine, node(k, mine, 120 << 30) + l3(mine, 114) + gpu(f"000{k}:01:00.0", "GH200"))
    chips += "".join(node(4 + 8 * k, (), 96 << 30, "GPUMemory") for k in range(4))
    return document(chips)


def memoryless() -> str:
    """Two nodes of four cores; the first has no memory."""
    halves = "".join(f'<object type="Group" cpuset="{mask(m)}">{node(k, m, size)}{l3(m)}</object>' for k, (m, size) in enumerate(((range(4), 0), (range(4, 8), 64 << 30))))
    return document(package(range(8), halves))


def distances(rows) -> str:
    """hwloc's latency matrix."""
    values = " ".join(str(v) for row in rows for v in row)
    names = " ".join(map(str, range(len(rows))))
    return (f'<distances2 type="NUMANode" nbobjs="{len(rows)}" kind="5" name="NUMALatency" indexing="os"><indexes length="{len(names)}">{names}</indexes>'
            f'<u64values length="{len(values)}">{values}</u64values></distances2>')
