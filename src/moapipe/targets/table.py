"""In: the name of a language. Out: its record."""

from __future__ import annotations

from moapipe.errors import TargetError
from moapipe.targets.c import C
from moapipe.targets.cuda import CUDA
from moapipe.targets.directive import DIRECTIVES
from moapipe.targets.fortran import FORTRAN
from moapipe.targets.hip import HIP
from moapipe.targets.isa import dtype_named, isa_named
from moapipe.targets.opencl import OPENCL
from moapipe.targets.target import Target

TARGETS: dict[str, Target] = {t.name: t for t in (C, FORTRAN, CUDA, HIP, OPENCL, *DIRECTIVES)}


def target_named(name: str) -> Target:
    """The record; TargetError when there is none."""
    if name not in TARGETS:
        raise TargetError(f"no target {name!r}", hint=f"choose one of {', '.join(TARGETS)}")
    return TARGETS[name]


def takers(dtype: str) -> tuple[str, ...]:
    """The languages that take a dtype; TargetError when there is no such dtype."""
    return tuple(t.name for t in TARGETS.values() if dtype_named(dtype).name in t.dtypes)


def taking(target: str, dtype: str) -> Target:
    """The record; TargetError when there is none, or when the language does not hold numbers like that."""
    row = target_named(target)
    if target not in takers(dtype):
        raise TargetError(f"{target} holds no numbers in {dtype}", hint=f"{', '.join(takers(dtype))} can; {target} takes {', '.join(row.dtypes)}")
    return row


def flags(target: str, isa: str, dtype: str) -> tuple[str, ...]:
    """The compiler's flags for one build, without `-shared`, `-S`, input and output; for a GPU, those of its first architecture."""
    row, machine = taking(target, dtype), isa_named(isa)
    march = (f"-march={machine.march}",) if machine.march else ()
    return (*row.flags, *march, *machine.wide) if row.device is None else (*row.flags, *(flag for _, flag in row.architectures[:1]))


PAIRS: tuple[tuple[str, str], ...] = tuple((c.name, f.name) for c, f in zip(DIRECTIVES[::2], DIRECTIVES[1::2], strict=True))
"""The same directives in C and in Fortran."""
