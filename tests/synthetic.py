"""A realistic dataset without measuring anything, for tests: `dataset(...)` has the schema of moapipe.lab.record.

Two kernels, two dtypes, C, Fortran and PyTorch, three sizes; times follow a machine of a given speed with a little seeded noise.
Some cases are not measured, each with its status and reason; some samples are invalid.
"""

import hashlib
import itertools

import numpy as np

from moapipe.lab.record import Case, Sample, collect, make

PEAK = {"f32": 220e9, "f64": 110e9}
BANDWIDTH = {"L1": 200e9, "L2": 80e9, "L3": 30e9}
KERNELS = {
    "attention_forward": {"forms": ("full", "causal"), "variants": ("row_scratch", "online_tiled"), "torch": "scaled_dot_product_attention",
                          "parameters": lambda n: {"B": 8, "n": n, "d": 64}, "flops": lambda n: 4.0 * 8 * n * n * 64,
                          "bytes": lambda n, s: 4.0 * 8 * n * 64 * s},
    "rmsnorm": {"forms": ("plain",), "variants": ("rows",), "torch": "rms_norm", "parameters": lambda n: {"rows": n, "d": 1024},
                "flops": lambda n: 4.0 * n * 1024, "bytes": lambda n, s: 2.0 * n * 1024 * s},
}
EFFICIENCY = {("row_scratch", "c"): 0.12, ("row_scratch", "fortran"): 0.11, ("online_tiled", "c"): 0.80, ("online_tiled", "fortran"): 0.76,
              ("rows", "c"): 0.85, ("rows", "fortran"): 0.83}


def _digest(*parts, length=16):
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:length]


def _launches(rng, seconds, launches, samples):
    """Samples around `seconds`; every seventh is disturbed and says so."""
    out = []
    for _ in range(launches):
        drift = 1 + 0.01 * rng.standard_normal()
        row = []
        for k in range(samples):
            disturbed = k % 7 == 6
            t = seconds * drift * (1 + 0.004 * abs(rng.standard_normal())) * (1.6 if disturbed else 1.0)
            row.append(Sample(t, max(1, int(1e-3 / t)), "neighbour" if disturbed else "valid", 2 * t, 8.0 * disturbed, 0.3 * t * disturbed))
        out.append(row)
    return out


def _identity(build, participant, machine, point):
    (kernel, form, dtype), (variant, target, _), (n, threads) = build, participant, point
    parameters = KERNELS[kernel]["parameters"](n)
    torch = target == "torch"
    return {"kernel": kernel, "form": form, "variant": variant, "target": target, "isa": "native" if torch else "avx512", "dtype": dtype,
            "machine": machine, "label": " ".join(f"{k}={v}" for k, v in sorted(parameters.items())), "threads": threads,
            "dnf_hash": "" if torch else _digest(kernel, form), "onf_hash": "" if torch else _digest(kernel, form, variant),
            "source_hash": "" if torch else _digest(kernel, form, variant, target, dtype),
            "prediction_hash": _digest("prediction", kernel, form, dtype, length=64)}


def _prediction(identity, n, threads):
    info, dtype = KERNELS[identity["kernel"]], identity["dtype"]
    size = {"f32": 4, "f64": 8}[dtype]
    flops, moved = info["flops"](n), info["bytes"](n, size)
    peak = PEAK[dtype] * threads
    ceilings = {"peak_flops": peak, "exp_rate": peak / 30, "bandwidth": BANDWIDTH}
    bound = {"lower_bound_bytes": {level: moved * factor for level, factor in (("L1", 4.0), ("L2", 2.0), ("L3", 1.0))}}
    if identity["target"] == "torch":
        return identity | ceilings | bound | {"useful_flops": flops}
    executed = flops * (1.1 if identity["form"] == "causal" else 1.0)
    compute, memory, overhead = executed / (0.95 * peak), moved / BANDWIDTH["L3"], 5e-6
    return identity | ceilings | bound | {
        "useful_flops": flops, "flops": executed, "exps": executed / 256, "loaded_bytes": 6 * moved, "stored_bytes": 2 * moved,
        "footprint_read_bytes": 0.75 * moved, "footprint_written_bytes": 0.25 * moved, "private_bytes": 65536.0,
        "traffic_bytes": {level: moved * factor for level, factor in (("L1", 12.0), ("L2", 5.0), ("L3", 1.3))},
        "predicted_seconds": max(compute, memory) + overhead, "predicted_compute_seconds": compute,
        "predicted_memory_seconds": memory, "predicted_overhead_seconds": overhead}


def _participants(kernel):
    info = KERNELS[kernel]
    return [(v, t, EFFICIENCY[v, t]) for v in info["variants"] for t in ("c", "fortran")] + [(info["torch"], "torch", 0.6)]


def _case(rng, identity, point, efficiency, counts):
    (n, threads), (launches, samples) = point, counts
    info = KERNELS[identity["kernel"]]
    parameters = info["parameters"](n)
    size = {"f32": 4, "f64": 8}[identity["dtype"]]
    work = max(info["flops"](n) / (efficiency * PEAK[identity["dtype"]] * threads), info["bytes"](n, size) / BANDWIDTH["L3"])
    match (identity["variant"], identity["target"], n):
        case ("row_scratch", "fortran", 512):
            return Case(identity, parameters, "validation_failed", "error 3.1e-2 exceeds its bound 1.0e-6 at n=65 d=40")
        case ("row_scratch", "c", 2048):
            return Case(identity, parameters, "timed_out", "one call took longer than 30 s")
        case _:
            return Case(identity, parameters, "measured", "", _launches(rng, work, launches, samples))


def dataset(machine="laptop", *, sizes=(512, 1024, 2048), threads=(2,), counts=(3, 20), seed=7):
    """A collected dataset: predictions, measurements and validations side by side; `counts` launches and samples."""
    rng = np.random.default_rng(seed)
    cases, predictions, validations = [], [], []
    for kernel, info in KERNELS.items():
        for form in info["forms"]:
            for dtype in ("f32", "f64"):
                for participant in _participants(kernel):
                    for point in itertools.product(sizes, threads):
                        identity = _identity((kernel, form, dtype), participant, machine, point)
                        cases.append(_case(rng, identity, point, participant[2], counts))
                        predictions.append(_prediction(identity, *point))
                    if participant[1] != "torch":
                        error = {"f32": 4e-7, "f64": 9e-16}[dtype]
                        validations.append({k: cases[-1].values[k] for k in ("kernel", "form", "variant", "target", "isa", "dtype", "machine")}
                                           | {"error": error, "error_bound": 20 * error, "baseline_error": 0.9 * error})
    attributes = {"moapipe_version": "0.1.0", "experiment": "synthetic", "host": machine, "topology": "2 cores, avx512, L2 1 MiB, L3 32 MiB",
                  "compilers": '{"c": "gcc 12.2.0"}', "libraries": '{"torch": "2.13.0"}', "environment": "{}",
                  "clock": "CLOCK_MONOTONIC, 1e-9 s", "created": "2026-11-30T00:00:00Z"}
    return collect([make(cases, attributes)], predictions, validations)
