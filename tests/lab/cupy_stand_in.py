"""In: what lab/gpu.py asks of cupy. Out: the same, on numpy: a stand-in for a device, so that what is around one can be tested.

A "device binary" is Python: functions by name that take a grid, a block and arguments, and compute on arrays.
"""

import time

import numpy as np

__version__ = "0.0"


class ndarray:
    """xarray asks for it."""


class _Runtime:
    count = 1

    @classmethod
    def getDeviceCount(cls):
        return cls.count

    @staticmethod
    def getDeviceProperties(_):
        return {"name": b"Stand-in H200"}

    @staticmethod
    def driverGetVersion():
        return 13000


class _Device:
    def __init__(self, _):
        self.compute_capability = "90"


class _Event:
    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        pass


class _Pool:
    malloc = None


class cuda:
    runtime, Device, Event, MemoryPool = _Runtime, _Device, _Event, _Pool

    @staticmethod
    def set_allocator(_):
        pass

    @staticmethod
    def get_elapsed_time(a, b):
        return (b.at - a.at) * 1e3


asarray, asnumpy, empty = np.array, np.array, np.empty


class _Lent(np.ndarray):
    @property
    def __cuda_array_interface__(self):
        return self.__array_interface__


def from_dlpack(x):
    return np.from_dlpack(x).view(_Lent)


class RawModule:
    def __init__(self, path):
        self.names = {}
        with open(path) as text:
            exec(compile(text.read(), path, "exec"), self.names)

    def get_function(self, name):
        return self.names[name]
