"""In: sets of CPUs or memory nodes as hwloc and the kernel print them. Out: sets of numbers, and back."""

from __future__ import annotations

from collections.abc import Iterable


def parse_mask(mask: str) -> frozenset[int]:
    """CPUs of a bitmap as hwloc and the kernel print it: 32-bit words, most significant first, `0x` optional, empty words zero;
    `0xf...f` (an infinite set) is not a set of CPUs of a machine and gives the finite part."""
    value = 0
    for word in mask.replace("0xf...f", "0x0").split(","):
        value = value << 32 | (int(word, 16) if word.strip() else 0)
    return frozenset(i for i in range(value.bit_length()) if value >> i & 1)


def parse_list(text: str) -> frozenset[int]:
    """CPUs of a list as the kernel prints it: `0-3,8,10-11`."""
    out: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        out |= set(range(int(first), int(last or first) + 1))
    return frozenset(out)


def list_text(cpus: Iterable[int]) -> str:
    """The inverse of `parse_list`: runs as `0-3`, ascending."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
