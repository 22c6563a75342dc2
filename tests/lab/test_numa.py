"""A real machine of several memory nodes, under emulation: the driver's memory policies and bindings, checked by the kernel of the guest.

Needs qemu, a static busybox and a Linux kernel image (MOAPIPE_GUEST_KERNEL, or one in /boot that can be read); else it is skipped.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.lab.test_planted import SOURCE

from moapipe.lab.place import root
from moapipe.lab.program import program
from moapipe.lab.runtime import settings
from moapipe.lab.sampling import Frame, Placed, judged, parse
from moapipe.lab.watch import Watch
from moapipe.machine.arrangement import Arrangement
from moapipe.machine.placement import Memory
from moapipe.machine.seating import Arranged

CPUS, NODES, MEGABYTES = 8, 4, 96
ELEMENTS = 1 << 19
QEMU, BUSYBOX = shutil.which("qemu-system-x86_64"), shutil.which("busybox")
KERNEL = next((k for k in (Path(os.environ.get("MOAPIPE_GUEST_KERNEL", "/nowhere")), *sorted(Path("/boot").glob("vmlinuz*"))) if k.is_file()), None)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (QEMU and BUSYBOX and KERNEL), reason="no qemu, static busybox or kernel image")]

# name -> (what the driver is told, the CPUs of its threads)
RUNS = {
    "owner": ("memory first_touch all -", range(CPUS)),
    "one": ("memory first_touch one -", range(CPUS)),
    "interleave": ("memory interleave all 0,1,2,3", range(CPUS)),
    "bind": ("memory bind all 3", range(CPUS)),
    "spread": ("memory first_touch all -", (0, 2, 4, 6, 1, 3, 5, 7)),
    "folded": ("memory first_touch all -", (0,)),
}


def libraries(*programs) -> set[str]:
    found = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(/\S+) \(0x", found))


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> dict[str, list[str]]:
    """What the driver says in the guest, by run."""
    folder = tmp_path_factory.mktemp("guest")
    tree = folder / "tree"
    for name in ("bin", "proc", "sys", "dev", "run", "tmp"):
        (tree / name).mkdir(parents=True)
    (folder / "work.c").write_text(SOURCE)
    subprocess.run(["gcc", "-O2", "-fopenmp", "-shared", "-fPIC", str(folder / "work.c"), "-o", str(tree / "work.so")], check=True)
    driver = program("driver", root())
    shutil.copy(driver, tree / "driver")
    shutil.copy(BUSYBOX, tree / "bin" / "busybox")
    for library in libraries(driver, tree / "work.so"):
        (tree / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, tree / library[1:])
    script = ["#!/bin/busybox sh", "/bin/busybox --install -s /bin", "mount -t proc proc /proc", "mount -t sysfs sys /sys", "mount -t devtmpfs dev /dev",
              f"dd if=/dev/zero of=/tmp/x bs=8 count={ELEMENTS} 2>/dev/null"]
    for name, (memory, cpus) in RUNS.items():
        commands = f"{memory}\nprepare 1 1 1 1\ninput {ELEMENTS} /tmp/x\noutput {ELEMENTS}\nsize {ELEMENTS}\nplaced\nturn 2 2\n"
        (tree / "run" / name).write_text(commands)
        variables = " ".join(f"{k}='{v}'" for k, v in settings(CPUS, tuple(cpus)).items())
        script.append(f"{variables} /driver /work.so work f64 {CPUS} < /run/{name} 2>&1 | sed 's/^/RUN {name} /'")
    (tree / "init").write_text("\n".join([*script, "for n in /sys/devices/system/node/node*; do echo NODE $n $(cat $n/cpulist); done", "poweroff -f"]) + "\n")
    (tree / "init").chmod(0o755)
    archive = f"cd {tree} && find . | {BUSYBOX} cpio -o -H newc 2>/dev/null > {folder}/initrd"
    subprocess.run(["sh", "-c", archive], check=True)
    each = CPUS // NODES
    nodes = [w for n in range(NODES) for w in ("-object", f"memory-backend-ram,id=m{n},size={MEGABYTES}M", "-numa",
                                               f"node,nodeid={n},cpus={n * each}-{n * each + each - 1},memdev=m{n}")]
    command = [QEMU, "-accel", "tcg", "-M", "q35", "-cpu", "max", "-m", str(NODES * MEGABYTES), "-smp", str(CPUS), *nodes, "-kernel", str(KERNEL),
               "-initrd", f"{folder}/initrd", "-append", "console=ttyS0 quiet panic=-1 nokaslr transparent_hugepage=never numa_balancing=disable", "-nographic",
               "-no-reboot", "-nodefaults", "-serial", "stdio"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    out: dict[str, list[str]] = {"nodes": re.findall(r"NODE \S+/node(\d+ \S+)", done.stdout)}
    for name, text in re.findall(r"RUN (\w+) (.*?)\r?\n", done.stdout):
        out.setdefault(name, []).append(text)
    assert set(RUNS) <= set(out), done.stdout[-3000:]
    return out


def placed(lines) -> Placed:
    return Placed.of(next(line for line in lines if line.startswith("done") and len(line.split()) == 5).split()[2:])


def verdict(lines, memory: Memory) -> str:
    arranged = Arranged(Arrangement(CPUS, CPUS), tuple(range(CPUS)), tuple(range(CPUS)), memory=memory)
    row = next(line for line in lines if line.startswith("sample "))
    return judged(parse(row.split()[1:], 2), Frame(arranged, 0.0, Watch()), placed(lines)).verdict


def test_the_guest_has_its_nodes(said):
    assert said["nodes"] == [f"{n} {2 * n}-{2 * n + 1}" for n in range(NODES)]


@pytest.mark.parametrize(("name", "memory"), [
    ("owner", Memory("first_touch")), ("one", Memory("first_touch", touchers="one")), ("interleave", Memory("interleave", (0, 1, 2, 3))),
    ("bind", Memory("bind", (3,))), ("spread", Memory("first_touch")),
])
def test_pages_lie_where_they_are_asked(said, name, memory):
    found = placed(said[name])
    assert found.misplaced(memory) < 0.05
    assert sum(found.pages.values()) > 2 * ELEMENTS * 8 // 4096 - 8
    assert verdict(said[name], memory) != "wrong_memory"


def test_first_touch_by_owners_uses_every_node_alike(said):
    pages = placed(said["owner"]).pages
    assert set(pages) == set(range(NODES))
    assert max(pages.values()) < 1.1 * min(pages.values())


@pytest.mark.parametrize(("name", "memory"), [("one", Memory("first_touch")), ("one", Memory("bind", (3,))), ("bind", Memory("interleave", (0, 1, 2, 3))),
                                              ("owner", Memory("bind", (1,)))])
def test_serial_first_touch_and_other_wrong_memory_is_named(said, name, memory):
    assert verdict(said[name], memory) == "wrong_memory"


def test_folded_places_are_named(said):
    assert verdict(said["folded"], Memory("first_touch")) == "narrow_mask"
