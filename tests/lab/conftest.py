"""A repository of its own for the lab's tests: one small kernel file, its variants, an experiment and a machine."""

from pathlib import Path

import pytest

KERNEL = '''"""A kernel."""
SIZES = ("rows", "columns", "depth")
PARAMETERS = {"n": ("rows", "columns"), "d": ("depth",)}
FORMS = {"full": {}, "causal": {"causal": "top_left"}}


def definitions(form):
    """What is computed."""
    return form  # the definitions


def inputs(rng, sizes, form): ...
def reference(xp, inputs, form): ...
def baseline(torch, inputs, form): ...
def error_bound(eps, inputs, outputs, form): ...
def useful_flops(sizes, form): ...
def lower_bound(sizes, form, capacity): ...
'''
VARIANTS = """
plain: {about: one nest a definition, targets: [c, fortran]}
tiled:
  about: tiles
  targets: [c]
  params: {Br: 2*MR}
  lifts:
    - split: {axis: i, by: Br, outer: io, inner: ii}
    - skip: {axis: io, mask: scores}
      when: causal
"""
EXPERIMENT = """
isa: avx512
threads: [1, 2]
kernels:
  toy:
    at: [{n: [4, 8], d: 2}, {rows: 3, columns: 5, d: [1, 2]}]
    limits: {plain: {n: 4}}
"""
MACHINE = "compilers: {c: {command: gcc}, fortran: {command: gfortran}}\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in {
        "kernels/toy.py": KERNEL, "kernels/toy.yaml": VARIANTS,
        "config/small.yaml": EXPERIMENT, "config/machines/local.yaml": MACHINE,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path
