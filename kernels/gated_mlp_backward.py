"""Gated MLP (SwiGLU), backward: dX, dWg, dWu and dWd from dF, derived from gated_mlp's definitions; U is what the forward pass saved.

V and the product of the halves are worked out again from X and U. Index variables as in gated_mlp.
"""

import gated_mlp as forward
import numpy as np

from moapipe.algebra.adjoint import Adjoint, adjoint

SIZES = ("rows", "d", "d_ff")
PARAMETERS = {"n": ("rows",), "d": ("d",), "ff": ("d_ff",)}
FORMS: dict[str, dict[str, object]] = {"backward": {}}
LEADING = "rows"


def definitions(form: str) -> Adjoint:
    """X and dF are ⟨rows d⟩, Wg and Wu ⟨d d_ff⟩, Wd ⟨d_ff d⟩, U ⟨rows d_ff⟩; dA has the shape of A."""
    return adjoint(forward.definitions("forward"), of=("F",), wrt=("X", "Wg", "Wu", "Wd"), saved=("U",))


def _saved(x):
    return {**{k: x[k] for k in ("X", "Wg", "Wu", "Wd")}, "U": x["X"] @ x["Wg"], "dF": x["dF"]}


def inputs(rng, sizes, form):
    """Those of the forward pass, what it saves, and a cotangent."""
    return _saved({**forward.inputs(rng, sizes, "forward"), "dF": rng.standard_normal((sizes["rows"], sizes["d"]))})


STRESS = {name: lambda x, form, f=f: _saved(f(x, "forward")) for name, f in forward.STRESS.items()}


def _sigmoid(xp, u):
    e = xp.exp(-abs(u))
    return xp.where(u >= 0, 1 / (1 + e), e / (1 + e))


def _halves(xp, x):
    """V, σ(U), SiLU(U), dH."""
    s = _sigmoid(xp, x["U"])
    return x["X"] @ x["Wu"], s, x["U"] * s, x["dF"] @ x["Wd"].T


def reference(xp, x, form):
    V, s, act, dH = _halves(xp, x)
    dU, dV = dH * V * (s + act * (1 - s)), dH * act
    return {"dX": dU @ x["Wg"].T + dV @ x["Wu"].T, "dWg": x["X"].T @ dU, "dWu": x["X"].T @ dV, "dWd": (act * V).T @ x["dF"]}


def baseline(torch, x, form):
    """PyTorch's backward alone, of its own forward pass, which ran before."""
    X, Wg, Wu, Wd = given = [x[n].detach().clone().requires_grad_() for n in ("X", "Wg", "Wu", "Wd")]
    with torch.enable_grad():
        F = (torch.nn.functional.silu(X @ Wg) * (X @ Wu)) @ Wd
    return "mm, silu, mul backward", lambda: dict(zip(("dX", "dWg", "dWu", "dWd"), torch.autograd.grad(F, given, x["dF"], retain_graph=True), strict=True))


def error_bound(eps, x, out, form):
    """docs/validation.md: V, dH and what they give, then the products."""
    u, tiny = eps / 2, 2.0 ** (-126 if eps > 1e-10 else -1022)
    (n, d), f = x["X"].shape, x["U"].shape[1]
    y = {k: abs(v) for k, v in x.items()}
    V, s, act, dH = map(abs, _halves(np, x))
    ev, eh = u * (d + 1) * (y["X"] @ y["Wu"]), u * (d + 1) * (y["dF"] @ y["Wd"].T)
    ea, along = 9 * u * act + tiny * (1 + y["U"]), s + 2 * act
    H, eH = act * V, ea * (V + ev) + act * ev + 2 * u * act * V
    dV, edV = dH * act, eh * act + dH * ea + 2 * u * dH * act
    dU = dH * V * along
    edU = (eh * (V + ev) + dH * ev) * along + 16 * u * dU + dH * (V + 1) * tiny * 4 * (1 + y["U"])

    def product(a, ea, b, k):
        return (ea + u * (k + 2) * a) @ b

    return {"dX": product(dU, edU, y["Wg"].T, f) + product(dV, edV, y["Wu"].T, f), "dWg": product(dU.T, edU.T, y["X"], n).T,
            "dWu": product(dV.T, edV.T, y["X"], n).T, "dWd": product(H.T, eH.T, y["dF"], n)}


def useful_flops(sizes, form):
    """Seven products: V and dH, two for dX, three of the weights."""
    return 14 * sizes["rows"] * sizes["d"] * sizes["d_ff"]


def lower_bound(sizes, form, capacity):
    """Elements past a cache of `capacity` elements: every array once, or seven products of 2mnk/√M − 2M each (Smith et al. 2017)."""
    n, d, f = (sizes[s] for s in SIZES)
    return max(3 * n * d + n * f + 6 * d * f, 14 * n * d * f / capacity**0.5 - 14 * capacity)
