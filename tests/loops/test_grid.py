"""What a nest asks of a GPU: the published atomics under each mapping, and shortcuts that give what counting gives."""

import pytest
from tests.loops.nests import NESTS, array, loop, ref, sizes_for
from tests.loops.test_lift_alone import last

from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build
from moapipe.lab.kernel import load, sizes_at
from moapipe.lab.place import root
from moapipe.loops import grid, warp
from moapipe.loops.cost import count
from moapipe.loops.onf import Accumulate, Kernel

AT = {"B": 2, "n": 2048, "d": 64}
FUSED, ALONE = 1_073_741_824, 536_870_912


@pytest.mark.parametrize(("kernel", "form", "variant", "updates"), [
    ("attention_forward_backward", "full", "row_parallel_atomic", FUSED), ("attention_forward_backward", "full", "split_passes", FUSED // 2),
    ("attention_forward_backward", "full", "split_passes_owner", 0), ("attention_forward_backward", "full", "split_passes_blocked", 0),
    ("attention_backward", "weights", "row_parallel_atomic", ALONE),
])  # fmt: skip
def test_the_published_atomics_under_each_mapping(kernel, form, variant, updates):
    """Job 21247666: one active lane an instruction; with full warps a 32nd of it, and so many our threads make of it too."""
    nest = derive(Build(kernel, form, variant, "cuda", "plain", "f64"), root()).schedule.kernel
    sizes = sizes_at(load(kernel, root()), AT | ({"G": 1} if kernel == "attention_backward" else {}))
    data = grid.account(nest, count(nest, sizes, 8), 4096)
    assert data["atomic_updates"] == updates
    assert data["atomic_instructions"] == {"one_lane": updates, "ours": updates // 32, "full": updates // 32}
    assert f"{updates:,} updates of elements" in "\n".join(grid.show(data))


@pytest.mark.parametrize("size", [5, 33])
@pytest.mark.parametrize("name", NESTS)
def test_shortcuts_give_what_counting_gives(name, size, monkeypatch):
    k, sizes = NESTS[name], sizes_for(NESTS[name], size)
    found = {lanes: warp.requests(k, sizes, 8, lanes, warp=4) for lanes in ("inner", "folds", "threads")}
    monkeypatch.setattr(warp, "_apart", lambda *_: False)
    for lanes, got in found.items():
        assert warp.requests(k, sizes, 8, lanes, warp=4) == got, lanes


@pytest.mark.parametrize("n", [1, 5, 9])
def test_rows_of_a_team_s_warps_ask_for_what_counting_gives(n, monkeypatch):
    k, sizes = last("a tile by a team").kernel, {"ni": n, "nj": 2 * n, "nk": n + 3, "ne": 1}
    found = [warp.requests(k, sizes, 8, "threads", warp=w) for w in (4, 8)]
    monkeypatch.setattr(warp, "_rows", lambda *_: 0)
    assert [warp.requests(k, sizes, 8, "threads", warp=w) for w in (4, 8)] == found


def test_what_teams_share():
    """Of the tile of 2 × 4 threads, at one size: 3 × 3 teams, 4 steps along the rows of A, two waits in each."""
    k, sizes = last("a tile by a team").kernel, {"ni": 5, "nj": 9, "nk": 11, "ne": 3}
    data = grid.account(k, counts := count(k, sizes, 8), 128)
    assert data["teams"]["regions"] == [{"threads": 8, "bytes": 8 * 2 * 3}] and data["teams"]["waits"] == 9 * 4 * 2
    assert data["teams"]["loads"] == counts.accesses["At"].loads == 5 * 9 * 11 and not data["teams"]["conflicts"]
    assert "72 waits, 0 shuffles, 495 loads" in "\n".join(grid.show(data))


@pytest.mark.parametrize("name", NESTS)
def test_our_threads_ask_for_at_least_a_sector_a_warp_and_at_most_one_an_element(name):
    k, sizes = NESTS[name], sizes_for(NESTS[name], 9)
    for a, rows in grid.account(k, count(k, sizes, 8), 32)["sectors"]["arrays"].items():
        for way, n in rows.items():
            assert n["full"] <= n["ours"] <= n["one_lane"], (a, way)


def rows_of(rows, index, threads):
    body = loop("i", rows, loop("j", threads, Accumulate("sum", ref("s", *index), ref("x", "i", "j"), (), "s", atomic=True), kind="parallel"), kind="parallel")
    return Kernel("rows", (), (array("x", "input", rows, threads), array("s", "output", rows)), (body,))


@pytest.mark.parametrize(("rows", "threads", "warps"), [(3, 64, 6), (3, 40, 4), (1, 5, 1), (7, 5, 2)])
def test_a_warp_has_consecutive_iterations_of_all_parallel_loops(rows, threads, warps):
    k = rows_of(rows, ("i",), threads)
    data = grid.account(k, count(k, {}, 8), 256)
    assert data["atomic_instructions"]["ours"] == warps and data["atomic_updates"] == rows * threads
    assert data["sectors"]["arrays"]["x"]["loads"]["ours"] == sum(len({e // 4 for e in range(w * 32, min(rows * threads, w * 32 + 32))}) for w in range(warps))


def test_private_arrays_are_a_threads_own_and_counted_by_it():
    nest = derive(Build("attention_forward", "full", "materialised", "cuda", "plain", "f64"), root()).schedule.kernel
    c = count(nest, {"batch": 2, "q_len": 32, "kv_len": 8, "d_k": 4, "d_v": 4}, 8)
    data = grid.account(nest, c, 64)
    spaces = {a.name: a.space for a in nest.arrays}
    private = {a: rows for a, rows in data["sectors"]["arrays"].items() if spaces[a] == "private"}
    assert private and all(n["ours"] == n["one_lane"] for rows in private.values() for n in rows.values())
    assert data["private"] == {"bytes_per_thread": c.thread_bytes, "allocated_bytes": 64 * c.thread_bytes, "written_bytes": c.private_bytes}
    assert any(rows["loads"]["ours"] < rows["loads"]["one_lane"] for a, rows in data["sectors"]["arrays"].items() if spaces[a] == "input")
