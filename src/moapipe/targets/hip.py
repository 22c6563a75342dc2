"""In: the record of CUDA. Out: that of HIP, which reads the same text: other header, other compiler."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from moapipe.targets.cuda import CUDA, file
from moapipe.targets.isa import ARITHMETIC

HIP = replace(
    CUDA, name="hip", source="kernel.hip", file=partial(file, "HIP", ("hip/hip_runtime.h",)), compiler="hipcc",
    flags=("-O3", "-std=c++17", "-x", "hip", "-munsafe-fp-atomics"),    # else every atomic sum is a compare-and-swap loop
    device=("kernel.hsaco", "--genco"), architectures=(("gfx90a", "--offload-arch=gfx90a"),), listing=("gcn", ("--cuda-device-only", "-S")),
    dtypes=ARITHMETIC, environment=("HIP_PLATFORM=amd",),         # with nvcc on the PATH hipcc would call that
)
