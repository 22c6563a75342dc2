"""RMSNorm forward: z[t,c] = gamma[c]·x[t,c]·rinv[t], rinv[t] = 1/√(mean_c x[t,c]² + eps). Saves rinv for the backward pass.

Zhang & Sennrich 2019, with eps inside the root. Index variables: t over rows, c over the d features.
"""

from moapipe.algebra import expr as moa
from moapipe.algebra.expr import Definition, Definitions

SIZES = ("rows", "d")
PARAMETERS = {"n": ("rows",), "d": ("d",)}
FORMS: dict[str, dict[str, object]] = {"forward": {}}


def definitions(form: str) -> Definitions:
    """x is rows×d, gamma has d elements, eps is a scalar; outputs z (rows×d) and rinv (rows)."""
    x, gamma, eps = moa.array("x", "rows", "d"), moa.array("gamma", "d"), moa.scalar_array("eps")
    squares = Definition("squares", ("t",), moa.omega(lambda row: moa.reduce("+", row * row, index="c"), 1, x))
    rinv = Definition("rinv", ("t",), moa.reciprocal(moa.sqrt(squares.array / moa.size("d") + eps)))
    scaled = moa.omega(lambda row, r: row * r, (1, 0), x, rinv.array)
    z = Definition("z", ("t", "c"), moa.omega(lambda g, row: g * row, (1, 1), gamma, scaled))
    return Definitions(SIZES, (x, gamma, eps), (squares, rinv, z), ("z", "rinv"))


STRESS = {
    "rows of zeros": lambda x, form: {**x, "x": 0 * x["x"]},
    "rows far below eps": lambda x, form: {**x, "x": 1e-15 * x["x"]},
    "large rows": lambda x, form: {**x, "x": 1e15 * x["x"]},
}
LEADING = "rows"


def defaults(sizes):
    """Scalars that a caller may leave out."""
    return {"eps": 1e-6}


def inputs(rng, sizes, form):
    rows, d = sizes["rows"], sizes["d"]
    return {"x": rng.standard_normal((rows, d)), "gamma": rng.uniform(0.5, 1.5, d), "eps": 1e-6}


def reference(xp, x, form):
    rinv = 1 / xp.sqrt((x["x"] ** 2).sum(-1) / x["x"].shape[-1] + x["eps"])
    return {"z": x["gamma"] * x["x"] * rinv[:, None], "rinv": rinv}


def baseline(torch, x, form):
    """PyTorch returns no rinv."""
    norm, shape, eps = torch.nn.functional.rms_norm, x["gamma"].shape, float(x["eps"])
    return "rms_norm", lambda: {"z": norm(x["x"], shape, x["gamma"], eps)}


def error_bound(eps, x, out, form):
    root = x["x"].shape[-1] / 2 + 5
    return {"z": eps / 2 * (root + 2) * abs(out["z"]), "rinv": eps / 2 * root * out["rinv"]}


def useful_flops(sizes, form):
    return 4 * sizes["rows"] * sizes["d"]


def lower_bound(sizes, form, capacity):
    """Elements past any cache: x and z once, gamma, rinv."""
    return 2 * sizes["rows"] * sizes["d"] + sizes["d"] + sizes["rows"]
