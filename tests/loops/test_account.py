"""What `--stage cost` prints: whole numbers, bytes among them, the same in text and in JSON."""

from __future__ import annotations

import json

import pytest
from tests.loops import published
from tests.loops.nests import NESTS

from moapipe.errors import LiftError
from moapipe.loops.account import account, show, show_closed

PUBLISHED = {"H": 2, "n": 2048, "d": 64}


def numbers(x):
    if isinstance(x, dict):
        return [n for v in x.values() for n in numbers(v)]
    return [n for v in x for n in numbers(v)] if isinstance(x, list) else [x]


def test_json_holds_the_three_counts_in_whole_numbers():
    data = json.loads(show(account(NESTS["row_attention"], PUBLISHED, 8), "json"))
    assert data["footprint"]["read_bytes"] == 6_291_456 and data["footprint"]["written_bytes"] == 69_206_016
    assert data["footprint"]["arrays"]["s"]["written_bytes"] == 67_108_864 and data["footprint"]["parameters"] == ["scale"]
    assert data["accesses"]["arrays"]["W"] == {"space": "workspace", "loads": 2 * 2048 * 2048 * 64, "stores": 2 * 2048 * 2048,
                                               "loaded_bytes": 8 * 2 * 2048 * 2048 * 64, "stored_bytes": 67_108_864}
    assert data["traffic"]["32 MiB"]["read_bytes"] >= 6_291_456
    floats = [x for part in ("accesses", "footprint", "traffic", "calls", "work") for x in numbers(data[part]) if isinstance(x, float)]
    assert not floats


def test_text_says_the_same():
    text = show(account(NESTS["row_attention"], PUBLISHED, 8))
    for part in ("6,291,456", "69,206,016", "67,108,864", "parameters, left out of all totals: scale", "parallel region 0: 4,096 iterations"):
        assert part in text


def test_a_lower_bound_stands_beside_every_count_of_bytes():
    at = {"H": 1, "n": 64, "d": 8}
    data = account(NESTS["row_attention"], at, 8, lower_bound=lambda capacity: 100 + 3e6 / capacity)
    assert data["footprint"]["lower_bound_bytes"] == 800 and data["traffic"]["32 KiB"]["lower_bound_bytes"] == 800 + 24_000_000 // 4096
    assert "lower bound: 800 bytes" in show(data)
    assert "lower_bound_bytes" not in account(NESTS["row_attention"], at, 8)["footprint"]


def test_shared_updates_and_page_walks_are_said():
    backward = published.row_parallel_backward()
    text = show(account(backward, {"B": 2, "N": 4096, "D": 64}, 8))
    assert "atomic: GK updates GK 2,147,483,648 times" in text and "67,108,864 with j on the lanes" in text
    assert "page walks: GV walks A along r over 4,096 pages, 1 elements of each; the TLB holds 2,048" in text
    assert "atomic" not in show(account(NESTS["row_attention"], PUBLISHED, 8))


def test_closed_forms_are_printed():
    text = show_closed(NESTS["row_attention"])
    assert "distinct elements written\n" in text and "  W = H*n**2\n" in text


def test_an_unknown_format_is_refused():
    with pytest.raises(LiftError, match="no format xml"):
        show(account(NESTS["catenation"], {"n": 3, "m": 4}, 8), "xml")
