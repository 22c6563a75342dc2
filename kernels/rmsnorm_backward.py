"""RMSNorm, backward: dx and dgamma from dz, derived from rmsnorm's definitions; rinv is what the forward pass saved.

Index variables as in rmsnorm: t over rows, c over the d features.
"""

import numpy as np
import rmsnorm as forward

from moapipe.algebra.adjoint import Adjoint, adjoint

SIZES = ("rows", "d")
PARAMETERS = {"n": ("rows",), "d": ("d",)}
FORMS: dict[str, dict[str, object]] = {"backward": {}}
LEADING = "rows"


def definitions(form: str) -> Adjoint:
    """x and dz are rows×d, gamma has d elements, rinv rows; dx is rows×d, dgamma has d elements."""
    return adjoint(forward.definitions("forward"), of=("z",), wrt=("x", "gamma"), saved=("rinv",), after=("sum_first",))


def _saved(x):
    with np.errstate(invalid="ignore"):  # a row without features has no mean
        return {"x": x["x"], "gamma": x["gamma"], "rinv": forward.reference(np, x, "forward")["rinv"], "dz": x["dz"]}


def inputs(rng, sizes, form):
    """Those of the forward pass, what it saves, and a cotangent."""
    return _saved({**forward.inputs(rng, sizes, "forward"), "dz": rng.standard_normal((sizes["rows"], sizes["d"]))})


STRESS = {name: lambda x, form, f=f: _saved(f({**x, "eps": 1e-6}, form)) for name, f in forward.STRESS.items()}


def reference(xp, x, form):
    d, r = x["x"].shape[-1], x["rinv"][:, None]
    weighted = x["dz"] * x["gamma"]
    mean = (weighted * x["x"]).sum(-1, keepdims=True) / max(d, 1)
    return {"dx": r * (weighted - r * r * x["x"] * mean), "dgamma": (x["dz"] * x["x"] * r).sum(0)}


def baseline(torch, x, form):
    """PyTorch's backward alone, of its own forward pass, which ran before; its eps is 1e-6."""
    given = [x[n].detach().clone().requires_grad_() for n in ("x", "gamma")]
    with torch.enable_grad():
        z = torch.nn.functional.rms_norm(given[0], given[1].shape, given[1], 1e-6)
    return "rms_norm backward", lambda: dict(zip(("dx", "dgamma"), torch.autograd.grad(z, given, x["dz"], retain_graph=True), strict=True))


def error_bound(eps, x, out, form):
    """docs/validation.md: the sum over a row, its factor, the two terms of dx; the sum over the rows."""
    rows, d = x["x"].shape
    u, r, size = eps / 2, x["rinv"][:, None], abs(x["x"])
    weighted = abs(x["dz"] * x["gamma"])
    pulled = r**3 * size * (weighted * size).sum(-1, keepdims=True) / max(d, 1)
    return {"dx": u * (4 * weighted * r + (d + 10) * pulled), "dgamma": u * (rows + 3) * (abs(x["dz"]) * size * r).sum(0)}


def useful_flops(sizes, form):
    """The row's sum 3, dx 4, dgamma 3 an element."""
    return 10 * sizes["rows"] * sizes["d"]


def lower_bound(sizes, form, capacity):
    """Elements past any cache: x, dz and dx once, gamma and dgamma, rinv."""
    return 3 * sizes["rows"] * sizes["d"] + 2 * sizes["d"] + sizes["rows"]
