"""Variants made of others: names renamed or tagged, definitions kept apart, conditions decided, axes around."""

from __future__ import annotations

import pytest

from moapipe.errors import ConfigError
from moapipe.lab.include import Include, includes, written_out
from moapipe.lab.kernel import included, load, scan, variant_digest
from moapipe.lab.place import root

SCRIPT = (
    {"split": {"axis": "i", "by": "2*W", "outer": "io", "inner": "ir"}},
    {"reorder": {"order": ["io", "j", "ir"]}},
    {"clip": {"axis": "io"}},
    {"fuse": {"axis": "io", "only": ["part", "C", "lse?"]}},
    {"fuse": {"axis": "io", "only": "Bt"}},
    {"fold_into": {"definition": "product", "reader": "C"}},
    {"bind": {"axis": "io", "kind": "parallel", "schedule": "dynamic"}, "when": "not transposed"},
    {"stream": {"array": "C"}, "when": "transposed"},
)


def expanded(**asked):
    return written_out([{"split": {"axis": "t"}}, {"include": {"variant": "v", **asked}}], lambda _: (SCRIPT, {"transposed": False}), "here")


def test_names_are_renamed_or_tagged_and_words_stay():
    first, *rest = expanded(form="f", rename={"i": "t", "C": "U", "product": "U"}, tag="_g", only=["U"], without=["fold_into"])
    assert first == {"split": {"axis": "t"}}
    assert rest == [
        {"split": {"axis": "t", "by": "2*W", "outer": "io_g", "inner": "ir_g", "only": ["U"]}},
        {"reorder": {"order": ["io_g", "j_g", "ir_g"], "only": ["U"]}},
        {"clip": {"axis": "io_g"}},
        {"fuse": {"axis": "io_g", "only": ["part_g", "U", "lse_g?"]}},
        {"fuse": {"axis": "io_g", "only": "Bt_g"}},
        {"bind": {"axis": "io_g", "kind": "parallel", "schedule": "dynamic"}},
    ]


def test_axes_around_stand_first_and_are_fused_first():
    made = expanded(form="f", outer=["b"])[1:]
    assert made[1] == {"reorder": {"order": ["b", "io", "j", "ir"]}}
    assert made[3:5] == ({"fuse": {"axis": "b", "only": ["part", "C", "lse?"]}}, {"fuse": {"axis": "io", "only": ["part", "C", "lse?"]}})


@pytest.mark.parametrize("axis", ["k", ["k"]])
def test_copies_and_parts_may_have_axes_of_those_around(axis):
    script = [{"split_fold": {"definition": "C", "axis": axis, "into": "part"}}, {"stage": {"array": "B", "into": "Bt", "index": ["k", "j"]}}]
    made = written_out([{"include": {"variant": "v", "outer": ["b"], "copies": {"part": ["b"], "Bt": ["b"]}}}], lambda _: (script, {}), "here")
    assert made == ({"split_fold": {"definition": "C", "axis": ["b", "k"], "into": "part"}}, {"stage": {"array": "B", "into": "Bt", "index": ["b", "k", "j"]}})


NUMBERED = (
    {"stage": {"array": "K", "into": "whole", "index": ["k"]}},
    {"stage": {"array": "K", "into": "tile", "index": ["k"]}},
    *({"pad_extent": {"array": a, "dim": 1, "to": "W"}} for a in ("s", "whole", "tile")),
    {"layout": {"array": "s", "order": [1, 0]}},
    {"contract": {"array": ["s", "seen?"]}},
    *({"block": {"array": a, "dim": 0, "by": "W"}} for a in ("s", "seen", "t")),
    {"layout": {"array": "s", "order": [1, 0]}},
)


def test_dimensions_by_number_come_behind_those_of_axes_around_until_an_array_is_contracted():
    made = written_out([{"include": {"variant": "v", "tag": "2", "outer": ["b", "h"], "copies": {"whole": ["h"]}}}], lambda _: (NUMBERED, {}), "here")
    assert [item["pad_extent"] for item in made[2:5]] == [
        {"array": "s2", "dim": "1 + 2", "to": "W"}, {"array": "whole2", "dim": "1 + 1", "to": "W"}, {"array": "tile2", "dim": 1, "to": "W"}]
    assert made[5] == {"layout": {"array": "s2", "order": [0, 1, "1 + 2", "0 + 2"]}}
    assert [item["block"]["dim"] for item in made[7:10]] == [0, 0, "0 + 2"]
    assert made[10] == {"layout": {"array": "s2", "order": [1, 0]}}


def test_without_axes_around_dimensions_stay():
    assert written_out([{"include": {"variant": "v"}}], lambda _: (NUMBERED, {}), "here") == NUMBERED


def test_without_a_form_conditions_stay():
    made = expanded()
    assert [item.get("when") for item in made[1:]] == [None] * 6 + ["not transposed", "transposed"]
    assert written_out([{"include": {"variant": "v", "form": "f"}, "when": "causal"}], lambda _: (SCRIPT, {"transposed": True}), "here")[-1] == {
        "stream": {"array": "C"}, "when": "causal"}


@pytest.mark.parametrize(("item", "message"), [
    ({"include": {"variant": "v", "named": 1}}, "unknown key named"),
    ({"include": {"variant": "v"}, "when": "causal"}, "a condition inside a condition"),
    ({"include": {"variant": "v", "form": "f"}}, "no option transposed"),
])  # fmt: skip
def test_what_is_refused(item, message):
    with pytest.raises(ConfigError, match=message):
        written_out([item], lambda _: (SCRIPT, {}), "here")


def test_kernels_include_each_other():
    assert set(included("gated_mlp", root())) == {"matmul"} and included("matmul", root()) == ()
    mlp, product = scan("gated_mlp", root()), scan("matmul", root())
    assert mlp.variants["tiled"].tiny == product.variants["tiled"].tiny
    assert all(len(item) - ("when" in item) == 1 and "include" not in item for v in mlp.variants.values() for item in v.lifts)
    assert includes([{"include": {"variant": "v"}}], "here") == (Include(variant="v"),)


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "kernels").mkdir()
    for name in ("matmul.py", "matmul.yaml", "gated_mlp.py", "gated_mlp.yaml"):
        (tmp_path / "kernels" / name).write_text((root() / "kernels" / name).read_text())
    return tmp_path


def test_an_edit_of_a_part_changes_the_whole(repository):
    before, path = load("gated_mlp", repository), repository / "kernels" / "matmul.yaml"
    path.write_text(path.read_text().replace("{axis: i, by: MC,", "{axis: i, by: 2*MC,"))
    after = load("gated_mlp", repository)
    assert variant_digest(before, "tiled") != variant_digest(after, "tiled")
    assert variant_digest(before, "published") == variant_digest(after, "published")


def test_a_circle_is_refused(repository):
    path = repository / "kernels" / "matmul.yaml"
    path.write_text(path.read_text() + "endless:\n  about: itself\n  targets: [c]\n  lifts:\n    - include: {variant: endless}\n")
    with pytest.raises(ConfigError, match="includes itself"):
        scan("matmul", repository)


@pytest.mark.parametrize(("item", "message"), [
    ("{kernel: matmull, variant: tiled}", "matmull"), ("{variant: tilde}", "tilde"), ("{variant: naive, form: nq}", "nq"),
])  # fmt: skip
def test_names_that_do_not_exist(repository, item, message):
    path = repository / "kernels" / "matmul.yaml"
    path.write_text(path.read_text() + f"new:\n  about: made of others\n  targets: [c]\n  lifts:\n    - include: {item}\n")
    with pytest.raises(ConfigError, match=message):
        scan("matmul", repository)
