"""A synthetic dataset of the record schema with everything a real one can hold: invalid samples, gaps, every status."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from moapipe.lab import record, transcript
from moapipe.lab.derive import derive
from moapipe.lab.experiment import Build
from moapipe.lab.file import write_json
from moapipe.lab.record import Case, Sample
from moapipe.lab.variable import LEVELS, STATUSES
from moapipe.report.archive import Material, builds
from moapipe.report.archive import make as make_archive
from moapipe.report.charts import write_all

CAPACITY = np.array([32e3, 1e6, 32e6])


@dataclass(frozen=True)
class Plan:
    """What `cases` makes the product of."""

    variants: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("attention_forward", "full", ("materialised", "row_scratch", "online", "online_tiled")),
        ("attention_forward", "causal", ("row_scratch", "online_tiled")),
        ("matmul", "nn", ("naive", "tiled")),
        ("rmsnorm", "forward", ("row",)),
    )
    targets: tuple[str, ...] = ("c", "fortran")
    dtypes: tuple[str, ...] = ("f32", "f64")
    lengths: tuple[int, ...] = (256, 512, 1024, 2048)


SPEED = {"materialised": 0.07, "row_scratch": 0.12, "online": 0.1, "online_tiled": 0.78, "naive": 0.05, "unwritten": 0.1, "tiled": 0.88, "row": 0.4}
BASELINES = {"attention_forward": "scaled_dot_product_attention", "matmul": "addmm", "rmsnorm": "rms_norm"}


def _sizes(kernel: str, n: int) -> dict[str, int]:
    match kernel:
        case "matmul":
            return {"k": n, "m": n, "n": n}
        case "rmsnorm":
            return {"d": 1024, "n": n}
        case _:
            return {"B": 8, "d": 64, "n": n}


def _flops(kernel: str, form: str, s: dict[str, int]) -> float:
    match kernel:
        case "matmul":
            return 2.0 * s["n"] ** 3
        case "rmsnorm":
            return 4.0 * s["n"] * s["d"]
        case _:
            return 4.0 * s["B"] * s["n"] ** 2 * s["d"] * (0.5 if form == "causal" else 1.0)


@dataclass(frozen=True)
class Row:
    """A case before it is measured: its identity, its sizes, its model time."""

    kernel: str
    form: str
    variant: str
    target: str
    dtype: str
    sizes: dict[str, int]

    @property
    def seconds(self) -> float:
        return 1.05 * max(self.compute, self.footprint / 20e9) + 4e-6

    @property
    def torch(self) -> bool:
        return self.target == "torch"

    @property
    def width(self) -> int:
        return 4 if self.dtype == "f32" else 8

    @property
    def peak(self) -> float:
        return 1.6e12 / self.width

    @property
    def useful(self) -> float:
        return _flops(self.kernel, self.form, self.sizes)

    @property
    def compute(self) -> float:
        share = 0.55 if self.torch else SPEED[self.variant] * (0.94 if self.target == "fortran" else 1.0)
        return self.useful / (self.peak * share)

    @property
    def footprint(self) -> float:
        s = self.sizes
        return float(self.width * (3 * s["n"] ** 2 if self.kernel == "matmul" else 4 * s["n"] * s["d"] * s.get("B", 1)))

    def values(self, index: int) -> dict[str, object]:
        """The variables of the case, as the stages before the bench would have made them."""
        label = " ".join(f"{k}={v}" for k, v in self.sizes.items())
        isa = "native" if self.torch else "avx512"
        identity = {"kernel": self.kernel, "form": self.form, "variant": self.variant, "target": self.target, "isa": isa}
        bound = np.maximum(self.footprint, 2 * self.useful * self.width / np.sqrt(CAPACITY / self.width))
        machine = {"peak_flops": self.peak, "exp_rate": 2e9, "bandwidth": dict(zip(LEVELS, (200e9, 80e9, 20e9), strict=True))}
        common = {**identity, **machine, "dtype": self.dtype, "machine": "local", "label": label, "threads": 2}
        common |= {"useful_flops": self.useful, "lower_bound_bytes": dict(zip(LEVELS, bound, strict=True))}
        return common if self.torch else common | self._predicted(index, bound)

    def _predicted(self, index: int, bound: np.ndarray) -> dict[str, object]:
        parts = {"compute": 0.97 * self.compute, "memory": self.footprint / 20e9, "overhead": 4e-6}
        traffic = bound * (1.15 if "tiled" in self.variant else 6.0)
        eps = 6e-8 if self.dtype == "f32" else 1.1e-16
        return {
            **{f"predicted_{k}_seconds": v for k, v in parts.items()},
            "predicted_seconds": max(parts["compute"], parts["memory"]) + 4e-6,
            "traffic_bytes": dict(zip(LEVELS, traffic, strict=True)),
            "flops": 1.1 * self.useful, "exps": 0.0, "loaded_bytes": 3 * self.footprint, "stored_bytes": self.footprint,
            "footprint_read_bytes": 0.75 * self.footprint, "footprint_written_bytes": 0.25 * self.footprint, "private_bytes": 65536.0,
            "error": 3 * eps, "error_bound": 40 * eps, "baseline_error": 5 * eps,
            "dnf_hash": sha256(f"{self.kernel} {self.form}".encode()).hexdigest()[:16], "onf_hash": f"{index:016x}", "source_hash": f"{index + 1:016x}",
            "prediction_hash": f"{index:064x}",
        }  # fmt: skip


def rows(plan: Plan) -> list[Row]:
    """The product of the plan's axes, PyTorch's case last in each bench group."""
    out = []
    for kernel, form, variants in plan.variants:
        for dtype in plan.dtypes:
            for n in plan.lengths:
                pairs = [(v, t) for v in variants for t in plan.targets] + [(BASELINES[kernel], "torch")]
                out += [Row(kernel, form, v, t, dtype, _sizes(kernel, n)) for v, t in pairs]
    return out


def _statuses(table: list[Row], faults: bool) -> list[str]:
    """Every status at least once, on generated builds only."""
    out = ["measured"] * len(table)
    ours = [i for i, r in enumerate(table) if not r.torch]
    bad = [name for name in STATUSES if name != "measured"]
    if faults and len(ours) > 2 * len(bad):
        for k, name in enumerate(bad, start=1):
            out[ours[k * len(ours) // (len(bad) + 1) + k % 2]] = name
    return out


def _samples(row: Row, status: str, shape: tuple[int, int], rng: np.random.Generator) -> list[list[Sample]]:
    if status not in ("measured", "all_invalid"):
        return []
    out = []
    for _ in range(shape[0]):
        base = row.seconds * (1 + 0.01 * rng.standard_normal())
        times = base * (1 + np.abs(0.02 * rng.standard_normal(shape[1])))
        bad = np.full(shape[1], True) if status == "all_invalid" else rng.random(shape[1]) < 0.03
        names = rng.choice(["preempted", "neighbour", "cpu_starved"], shape[1])
        out.append([Sample(t * (30 if b else 1), 1, str(v) if b else "valid", 2 * t, 0, 0.0) for t, b, v in zip(times, bad, names, strict=True)])
    return out


def synthetic(plan: Plan = Plan(), launches: int = 3, samples: int = 20, faults: bool = True, seed: int = 1) -> xr.Dataset:
    """A dataset; times scatter by 2 % around a model in which every launch has an offset of its own."""
    rng = np.random.default_rng(seed)
    table = rows(plan)
    cases = []
    for i, (row, status) in enumerate(zip(table, _statuses(table, faults), strict=True)):
        reason = "" if status == "measured" else f"the example's case of {status.replace('_', ' ')}"
        cases.append(Case(row.values(i), row.sizes, status, reason, _samples(row, status, (launches, samples), rng)))
    return record.make(cases, ATTRIBUTES)


ATTRIBUTES = {
    "moapipe_version": "0.1.0", "experiment": "example", "host": "node17.cluster.example",
    "topology": "1 socket × 1 NUMA node × 2 cores, L1 32 KiB, L2 1 MiB, L3 32 MiB", "clock": "CLOCK_MONOTONIC_RAW, 1 ns",
    "compilers": json.dumps({"c": "gcc (Debian 12.2.0-14) 12.2.0", "fortran": "GNU Fortran (Debian 12.2.0-14) 12.2.0"}),
    "libraries": json.dumps({"python": "3.11.7", "numpy": "2.4.6", "torch": "2.13.0", "blas": "MKL 2024.2"}),
    "environment": json.dumps({"OMP_PROC_BIND": "true"}), "created": "2026-11-30T04:40:00Z",
}  # fmt: skip


@pytest.fixture
def make() -> Callable[..., xr.Dataset]:
    """The factory of datasets: `make(Plan(...), launches=…, samples=…, faults=…)`."""
    return synthetic


@pytest.fixture(scope="session")
def dataset() -> xr.Dataset:
    """The whole synthetic experiment; session-wide, so copy before changing it."""
    return synthetic()


@pytest.fixture(scope="session")
def dataset_path(dataset: xr.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dataset") / "dataset.nc"
    record.write(dataset, path)
    return path


REPOSITORY = Path(__file__).parents[2]
SMALL = Plan((("attention_forward", "causal", ("online_tiled",)), ("matmul", "nn", ("tiled", "unwritten"))), ("c", "fortran"), ("f64",), (128, 256, 512))


VALIDATION = {
    "status": "validated", "passed": True, "error": 3.3e-16, "error_bound": 1e-14,
    "cases": [{"case": "n=1", "tiles": "usual", "passed": True, "reason": "", "errors": [
        {"output": "out", "error": 3.3e-16, "bound": 1e-14, "ratio": 0.033, "baseline": None, "place": [0], "wrong": 0}]},
        {"case": "n=2", "tiles": "tiny", "passed": False, "reason": "crashed", "errors": []}],
}  # fmt: skip


def furnish(root: Path, ds: xr.Dataset) -> Material:
    """A repository's folder with everything that an archive is made of; real derivations, builds and validations as their stages write
    them. The variant `unwritten` has no derivation, as after a failure."""
    shutil.copytree(REPOSITORY / "kernels", root / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "config").mkdir()
    (root / "config" / "example.yaml").write_text("about: an example\n")
    material = Material(root, "example", "local", (root / "config" / "example.yaml",))
    record.write(ds, material.here / "dataset.nc")
    write_all(material.here / "dataset.nc", material.here / "charts")
    write_json(root / "results" / "calibrate" / "local" / "calibration.json", {"schema": 1, "peak": 2e11})
    for build in builds(ds):
        if build.variant != "unwritten":
            _furnish_build(material, build)
    return material


def _furnish_build(material: Material, build: Build) -> None:
    results = material.root / "results"
    transcript.write(derive(build, material.root), results / "derive" / build.path())
    here = results / "build" / build.path() / "local"
    write_json(here / "build.json", {"status": "built", "compiler": {"name": "gcc"}, "commands": ["gcc -O3 kernel.c"], "tiles": [{"mark": "scores", "fma": 24}]})
    (here / "kernel.s").write_text("\t.text\n")
    (here / "kernel.so").write_bytes(b"\x7fELF")
    write_json(results / "validate" / build.path() / "local" / "validation.json", VALIDATION)
    write_json(material.here / "predict" / build.kernel / build.form / build.dtype / "prediction.json", {"schema": 1})


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    """A furnished root, shared: tests that change it must copy it."""
    return furnish(tmp_path_factory.mktemp("root"), synthetic(SMALL))


@pytest.fixture(scope="session")
def archive_folder(material: Material) -> Path:
    """A whole archive; read only."""
    return make_archive(material)
