"""LayerNorm forward: z[t,c] = gamma[c]·(x[t,c] − mean[t])·rinv[t] + beta[c], rinv[t] = 1/√(mean_c (x[t,c] − mean[t])² + eps).

Ba, Kiros & Hinton 2016 (arXiv:1607.06450), eps inside the root; the variance is that of the centred row, in a second pass over
it. Saves mean and rinv for the backward pass. Index variables: t over rows, c over the d features.
"""

from moapipe.algebra import expr as moa
from moapipe.algebra.expr import Definition, Definitions

SIZES = ("rows", "d")
PARAMETERS = {"n": ("rows",), "d": ("d",)}
FORMS: dict[str, dict[str, object]] = {"forward": {}}
LEADING = "rows"


def definitions(form: str) -> Definitions:
    """x is rows×d, gamma and beta have d elements, eps is a scalar; outputs z (rows×d), mean and rinv (rows)."""
    x, gamma, beta, eps = moa.array("x", "rows", "d"), moa.array("gamma", "d"), moa.array("beta", "d"), moa.scalar_array("eps")
    mean = Definition("mean", ("t",), moa.omega(lambda row: moa.reduce("+", row, index="c"), 1, x) / moa.size("d"))
    centred = Definition("centred", ("t", "c"), moa.omega(lambda row, m: row - m, (1, 0), x, mean.array))
    squares = Definition("squares", ("t",), moa.omega(lambda row: moa.reduce("+", row * row, index="c"), 1, centred.array))
    rinv = Definition("rinv", ("t",), moa.reciprocal(moa.sqrt(squares.array / moa.size("d") + eps)))
    scaled = moa.omega(lambda row, r: row * r, (1, 0), centred.array, rinv.array)
    stretched = moa.omega(lambda g, row: g * row, (1, 1), gamma, scaled)
    z = Definition("z", ("t", "c"), moa.omega(lambda row, b: row + b, (1, 1), stretched, beta))
    return Definitions(SIZES, (x, gamma, beta, eps), (mean, centred, squares, rinv, z), ("z", "mean", "rinv"))


def defaults(sizes):
    """Scalars that a caller may leave out."""
    return {"eps": 1e-5}


def inputs(rng, sizes, form):
    rows, d = sizes["rows"], sizes["d"]
    return {"x": rng.standard_normal((rows, d)) + 0.5, "gamma": rng.uniform(0.5, 1.5, d), "beta": rng.standard_normal(d), "eps": 1e-5}


STRESS = {
    "rows of zeros": lambda x, form: {**x, "x": 0 * x["x"]},
    "rows of one value": lambda x, form: {**x, "x": 0 * x["x"] + 3.7},
    "rows far from 0": lambda x, form: {**x, "x": x["x"] + 1000},
    "rows far below eps": lambda x, form: {**x, "x": 1e-15 * x["x"]},
    "large rows": lambda x, form: {**x, "x": 1e15 * x["x"]},
}


def reference(xp, x, form):
    d = x["x"].shape[-1]
    mean = x["x"].sum(-1) / d
    centred = x["x"] - mean[:, None]
    rinv = 1 / xp.sqrt((centred**2).sum(-1) / d + x["eps"])
    return {"z": x["gamma"] * centred * rinv[:, None] + x["beta"], "mean": mean, "rinv": rinv}


def baseline(torch, x, form):
    """PyTorch's own kernel, with the mean and rinv that it saves."""
    norm, shape, eps = torch.ops.aten.native_layer_norm, x["gamma"].shape, float(x["eps"])

    def run():
        z, mean, rinv = norm(x["x"], shape, x["gamma"], x["beta"], eps)
        return {"z": z, "mean": mean[:, 0], "rinv": rinv[:, 0]}

    return "native_layer_norm", run


def error_bound(eps, x, out, form):
    """docs/validation.md: the mean's error moves every element of its row, and the variance by its square."""
    u, d = eps / 2, x["x"].shape[-1]
    centred, r = abs(x["x"] - out["mean"][:, None]), out["rinv"]
    mean = u * (d + 1) * abs(x["x"]).sum(-1) / d
    rinv = r * (u * (d / 2 + 6) + mean**2 * r**2 / 2)
    z = abs(x["gamma"]) * ((r + rinv)[:, None] * mean[:, None] + centred * rinv[:, None] + 5 * u * centred * r[:, None]) + u * (abs(x["beta"]) + abs(out["z"]))
    return {"z": z, "mean": mean, "rinv": rinv}


def useful_flops(sizes, form):
    """Mean 1, centred 1, squares 2, z 3 an element."""
    return 7 * sizes["rows"] * sizes["d"]


def lower_bound(sizes, form, capacity):
    """Elements past any cache: x and z once, gamma and beta, mean and rinv."""
    return 2 * sizes["rows"] * sizes["d"] + 2 * sizes["d"] + 2 * sizes["rows"]
