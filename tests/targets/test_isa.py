import pytest

from moapipe.errors import TargetError
from moapipe.targets.isa import DTYPES, ISAS, Caches, element_bytes, isa_named, tile_parameters

EVERY = [(isa, dtype) for isa in ISAS for dtype in DTYPES]


@pytest.mark.parametrize(("isa", "dtype"), EVERY)
def test_accumulators_fit_the_registers_and_hide_the_latency(isa: str, dtype: str) -> None:
    row, p = ISAS[isa], tile_parameters(isa, dtype)
    assert p["V"] * element_bytes(dtype) == row.vector_bytes
    assert p["W"] == p["NV"] * p["V"]
    assert row.latency * row.throughput <= p["MR"] * p["NV"] <= row.registers - p["NV"] - 1


@pytest.mark.parametrize(("isa", "dtype"), EVERY)
@pytest.mark.parametrize("caches", [Caches(), Caches(16 * 1024, 256 * 1024)], ids=["default", "small"])
def test_blocks_are_whole_tiles(isa: str, dtype: str, caches: Caches) -> None:
    p = tile_parameters(isa, dtype, caches)
    assert p["Br"] % p["MR"] == p["Bq"] % p["Br"] == p["Bc"] % p["W"] == p["Bc"] % p["Bq"] == p["MC"] % p["Br"] == p["NC"] % p["W"] == 0
    assert min(p.values()) > 0


def test_the_tile_of_avx512_is_the_one_that_was_measured() -> None:
    p = tile_parameters("avx512", "f32")
    assert (p["MR"], p["W"], p["Br"], p["Bq"], p["Bc"]) == (8, 32, 32, 128, 256)


@pytest.mark.parametrize("call", [lambda: isa_named("sse9"), lambda: tile_parameters("avx2", "f16")])
def test_unknown_names_are_refused_with_the_known_ones(call) -> None:
    with pytest.raises(TargetError, match="choose one of"):
        call()
