"""The emitted text of small kernels, character by character: a change of the walker shows here first, in a form to read."""

from __future__ import annotations

import json

import pytest
from tests.loops.test_lift_alone import last
from tests.targets import tiles
from tests.targets.conftest import FOLDER

from moapipe.loops.team import threads
from moapipe.targets.emit import emit
from moapipe.targets.table import TARGETS

KERNELS = {"product": tiles.product(2, 2, 2), "masked_rows": tiles.masked_rows(2, 4), "panels": tiles.panels(2), "copied": tiles.copied(2),
           "packed": tiles.packed(2), "shared": tiles.shared(), "team": last("a tile by a team").kernel,
           "lanes": last("an element by lanes").kernel, "fetched": last("two elements as one").kernel}
CASES = [(name, target) for name, k in KERNELS.items() for target, row in TARGETS.items() if row.team or not threads(k.body)]


@pytest.mark.parametrize(("name", "target"), CASES)
def test_emitted_text(name, target, golden):
    golden(f"{name}.{target}.txt", emit(KERNELS[name], target, "plain", "f64").text)


@pytest.mark.parametrize("name", KERNELS)
def test_manifest_part(name, golden):
    golden(f"{name}.json", json.dumps(emit(KERNELS[name], next(t for n, t in CASES if n == name), "plain", "f64").manifest, indent=1) + "\n")


def test_no_golden_is_left_over():
    assert {p.name for p in FOLDER.iterdir()} == {f"{n}.{t}.txt" for n, t in CASES} | {f"{n}.json" for n in KERNELS}


@pytest.mark.parametrize(("name", "target"), CASES)
def test_the_same_kernel_gives_the_same_bytes(name, target):
    a, b = (emit(KERNELS[name], target, "plain", "f64") for _ in range(2))
    assert (a.text, a.manifest) == (b.text, b.manifest)
