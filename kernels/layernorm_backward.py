"""LayerNorm, backward: dx, dgamma and dbeta from dz, derived from layernorm's definitions; mean and rinv are what the forward saved.

Index variables as in layernorm: t over rows, c over the d features.
"""

import layernorm as forward
import numpy as np

from moapipe.algebra.adjoint import Adjoint, adjoint

SIZES = ("rows", "d")
PARAMETERS = {"n": ("rows",), "d": ("d",)}
FORMS: dict[str, dict[str, object]] = {"backward": {}}
LEADING = "rows"


def definitions(form: str) -> Adjoint:
    """x and dz are rows×d, gamma has d elements, mean and rinv rows; dx is rows×d, dgamma and dbeta have d elements."""
    return adjoint(forward.definitions("forward"), of=("z",), wrt=("x", "gamma", "beta"), saved=("mean", "rinv"), after=("sum_first",))


def _saved(x):
    with np.errstate(invalid="ignore"):  # a row without features has no mean
        made = forward.reference(np, x, "forward")
    return {"x": x["x"], "gamma": x["gamma"], "mean": made["mean"], "rinv": made["rinv"], "dz": x["dz"]}


def inputs(rng, sizes, form):
    """Those of the forward pass, what it saves, and a cotangent."""
    return _saved({**forward.inputs(rng, sizes, "forward"), "dz": rng.standard_normal((sizes["rows"], sizes["d"]))})


STRESS = {name: lambda x, form, f=f: _saved(f({**x, "beta": 0 * x["gamma"], "eps": 1e-5}, form)) for name, f in forward.STRESS.items()}


def _centred(x):
    return x["x"] - x["mean"][:, None], x["rinv"][:, None], x["dz"] * x["gamma"]


def reference(xp, x, form):
    c, r, weighted = _centred(x)
    d = max(x["x"].shape[-1], 1)
    along = weighted * r - r**3 * c * (weighted * c).sum(-1, keepdims=True) / d
    return {"dx": along - along.sum(-1, keepdims=True) / d, "dgamma": (x["dz"] * c * r).sum(0), "dbeta": x["dz"].sum(0)}


def baseline(torch, x, form):
    """PyTorch's own kernel, given the mean and rinv that the forward pass saved."""
    call, shape, beta = torch.ops.aten.native_layer_norm_backward, x["gamma"].shape, torch.zeros_like(x["gamma"])
    mean, rinv, all_of_them = x["mean"][:, None], x["rinv"][:, None], [True, True, True]
    return "native_layer_norm_backward", lambda: dict(
        zip(("dx", "dgamma", "dbeta"), call(x["dz"], x["x"], shape, mean, rinv, x["gamma"], beta, all_of_them), strict=True))


def error_bound(eps, x, out, form):
    """docs/validation.md: as rmsnorm_backward on the centred row, then the mean of the row is taken away."""
    c, r, weighted = map(abs, _centred(x))
    rows, d = c.shape[0], max(c.shape[1], 1)
    u, pulled = eps / 2, r**3 * c * (weighted * c).sum(-1, keepdims=True) / d
    along = u * (5 * weighted * r + (d + 12) * pulled)
    mean = (along + u * (d + 3) * (weighted * r + pulled)).sum(-1, keepdims=True) / d
    return {"dx": along + mean + u * abs(out["dx"]), "dgamma": u * (rows + 4) * (abs(x["dz"]) * c * r).sum(0), "dbeta": u * (rows + 1) * abs(x["dz"]).sum(0)}


def useful_flops(sizes, form):
    """Centred 1, the row's sum 3, the gradient along the centred row 4, its sum 1, dx 1, dgamma 2, dbeta 1 an element."""
    return 13 * sizes["rows"] * sizes["d"]


def lower_bound(sizes, form, capacity):
    """Elements past any cache: x, dz and dx once, gamma, dgamma and dbeta, mean and rinv."""
    return 3 * sizes["rows"] * sizes["d"] + 3 * sizes["d"] + 2 * sizes["rows"]
