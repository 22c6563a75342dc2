"""How many blocks a multiprocessor holds: NVIDIA's own example, and each limit in turn."""

import pytest
from pydantic import ValidationError

from moapipe.lab.experiment import machine_file
from moapipe.lab.place import root
from moapipe.machine.device import Device, occupancy, unfit

V100 = Device(name="V100", arch="sm_70", multiprocessors=80, shared_bytes=98304, shared_bytes_block=98304, cache_bytes=6 << 20, memory_bytes=16 << 30,
              bandwidth=0.9e12, peak_flops={"f32": 15.7e12, "f64": 7.8e12})  # fmt: skip
A100 = machine_file("anvil", root()).device


@pytest.mark.parametrize(("block", "registers", "blocks", "share"), [(128, 37, 12, 0.75), (320, 37, 4, 0.625), (128, 32, 16, 1.0)])
def test_the_example_of_the_best_practices_guide(block, registers, blocks, share):
    """CUDA C++ Best Practices Guide, "Calculating Occupancy": compute capability 7.0, 37 registers a thread."""
    found = occupancy(V100, block, registers)
    assert (found.blocks, found.share) == (blocks, share)


@pytest.mark.parametrize(("block", "registers", "shared", "blocks", "limit"), [
    (32, 16, 0, 32, "blocks"), (1024, 16, 0, 2, "threads"), (128, 255, 0, 2, "registers"), (128, 32, 40_000, 4, "shared memory"), (128, 32, 166_912, 1, "shared memory"),
    (128, 32, 166_913, 0, "shared memory"), (1024, 128, 0, 0, "registers"),
])  # fmt: skip
def test_what_stops_one_more_block(block, registers, shared, blocks, limit):
    found = occupancy(A100, block, registers, shared)
    assert (found.blocks, found.limit) == (blocks, limit)


def test_a_block_that_cannot_start():
    assert "1,024" in unfit(A100, 1025, 16, 0) and not unfit(A100, 1024, 64, 0) and "registers" in unfit(A100, 1024, 65, 0)


def test_a_device_of_a_machine_file_is_checked():
    with pytest.raises(ValidationError, match="shared_byte"):
        Device(**V100.model_dump(exclude={"shared_bytes"}), shared_byte=1)
    devices = {m: machine_file(m, root()).device for m in ("local", "anvil", "delta", "h200")}
    assert devices["local"] is None and devices["anvil"] == devices["delta"] and devices["h200"].arch == "sm_90"
