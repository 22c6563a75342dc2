"""In: an OpenCL library, a platform's name. Out: its device: texts compiled, buffers made, functions launched, buffers read.

The dozen functions of OpenCL 1.2 that this takes are called through ctypes, so that nothing has to be installed but a driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int, c_int64, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moapipe.errors import LabError

PLATFORM_NAME, BUILD_LOG, ANY_DEVICE = 0x0902, 0x1183, 0xFFFFFFFF
READ_WRITE, READ_ONLY, COPY = 1, 4, 32
PLATFORMS = 16


class Device:
    """The first device of the platform; one context, one queue that runs in order. LabError names the call that failed."""

    def __init__(self, library: str, platform: str) -> None:
        try:
            self.cl = ctypes.CDLL(library)
        except OSError as e:
            raise LabError(f"cannot load {library}: {e}", hint="install an OpenCL driver and its loader (Debian: pocl-opencl-icd)") from e
        self.device = self._device(platform)
        self.context = self._made("clCreateContext", None, c_uint(1), byref(self.device), None, None)
        self.queue = self._made("clCreateCommandQueue", self.context, self.device, c_uint64(0))
        self.program = c_void_p()

    def _do(self, name: str, *args: Any) -> None:
        f = getattr(self.cl, name)
        f.restype = c_int
        if code := f(*args):
            raise LabError(f"{name} fails with error {code}", where="OpenCL")

    def _made(self, name: str, *args: Any) -> c_void_p:
        f, error = getattr(self.cl, name), c_int()
        f.restype = c_void_p
        made = c_void_p(f(*args, byref(error)))
        if error.value:
            raise LabError(f"{name} fails with error {error.value}", where="OpenCL")
        return made

    def _device(self, wanted: str) -> c_void_p:
        found, count, names = (c_void_p * PLATFORMS)(), c_uint(), []
        self._do("clGetPlatformIDs", c_uint(PLATFORMS), found, byref(count))
        for platform in map(c_void_p, found[: count.value]):
            text = ctypes.create_string_buffer(1024)
            self._do("clGetPlatformInfo", platform, c_uint(PLATFORM_NAME), c_size_t(len(text)), text, None)
            names.append(text.value.decode())
            if wanted in names[-1]:
                device = c_void_p()
                self._do("clGetDeviceIDs", platform, c_uint64(ANY_DEVICE), c_uint(1), byref(device), None)
                return device
        raise LabError(f"no OpenCL platform {wanted!r}", where="OpenCL", hint=f"there are {', '.join(names) or 'none'}")

    def compile(self, text: str, options: str = "") -> None:
        """The program that `launch` takes functions from. LabError with the compiler's words."""
        source = ctypes.c_char_p(text.encode())
        self.program = self._made("clCreateProgramWithSource", self.context, c_uint(1), byref(source), None)
        try:
            self._do("clBuildProgram", self.program, c_uint(1), byref(self.device), options.encode(), None, None)
        except LabError as e:
            log = ctypes.create_string_buffer(1 << 16)
            self._do("clGetProgramBuildInfo", self.program, self.device, c_uint(BUILD_LOG), c_size_t(len(log)), log, None)
            raise LabError(f"the text does not compile: {log.value.decode(errors='replace').strip()[:2000]}", where="OpenCL") from e

    def buffer(self, values: NDArray[Any], *, defined: bool = True, written: bool = True) -> c_void_p:
        """Memory of the device as large as `values`, with their contents if they are `defined`; a kernel may not write an unwritten one."""
        flags = (READ_WRITE if written else READ_ONLY) | (COPY if defined and values.nbytes else 0)
        start = c_void_p(values.ctypes.data) if flags & COPY else None
        return self._made("clCreateBuffer", self.context, c_uint64(flags), c_size_t(max(values.nbytes, 1)), start)

    def launch(self, function: str, blocks: int, block: int, buffers: Sequence[c_void_p], integers: Sequence[int]) -> None:
        """Blocks of `block` threads; arguments are the buffers, then the integers. Returns when it is done."""
        kernel = self._made("clCreateKernel", self.program, function.encode())
        for k, value in enumerate((*buffers, *map(c_int64, integers))):
            self._do("clSetKernelArg", kernel, c_uint(k), c_size_t(ctypes.sizeof(value)), byref(value))
        grid, group = c_size_t(blocks * block), c_size_t(block)
        self._do("clEnqueueNDRangeKernel", self.queue, kernel, c_uint(1), None, byref(grid), byref(group), c_uint(0), None, None)
        self._do("clFinish", self.queue)
        self._do("clReleaseKernel", kernel)

    def read(self, buffer: c_void_p, into: NDArray[np.floating[Any]]) -> None:
        if into.nbytes:
            pointer = c_void_p(into.ctypes.data)
            self._do("clEnqueueReadBuffer", self.queue, buffer, c_uint(1), c_size_t(0), c_size_t(into.nbytes), pointer, c_uint(0), None, None)
