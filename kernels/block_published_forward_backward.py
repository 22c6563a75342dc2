"""The published transformer block, forward and backward in one: Y, and the gradients of X and of all weights from dY, derived from
block_published.

Nothing is saved between the passes but what this kernel keeps for itself. Index variables as in block_published. Its formulas run
on arrays (`reference`) and on arrays that are rounded at random (`error_bound`).
"""

import attention_forward as attention
import block_published as forward
import numpy as np

from moapipe.algebra.adjoint import Adjoint, adjoint
from moapipe.lab.rounded import Rounded, bounds, einsum

SIZES = ("batch", "seq", "d", "d_ff")
PARAMETERS = {"B": ("batch",), "n": ("seq",), "d": ("d",), "ff": ("d_ff",)}
FORMS: dict[str, dict[str, object]] = {"forward_backward": {}}


def definitions(form: str) -> Adjoint:
    """X, dY and Y are ⟨batch seq d⟩; the others as in block_published, dA has the shape of A."""
    return differentiated(forward)


def differentiated(block) -> Adjoint:
    """A block's output and the gradients of its rows and weights."""
    return adjoint(block.definitions("forward"), of=("Y",), wrt=("X", "gamma1", "gamma2", *block.WEIGHTS), outputs=("Y",),
                   laws=("divide_first",), after=("corr", "sum_first"))


def defaults(sizes):
    """Scalars that a caller may leave out."""
    return forward.defaults(sizes)


def inputs(rng, sizes, form):
    """Those of the forward pass, and a cotangent."""
    return {**forward.inputs(rng, sizes, "forward"), "dY": rng.standard_normal((sizes["batch"], sizes["seq"], sizes["d"]))}


STRESS = forward.STRESS


# ------------------------------------------------------------------ functions of arrays, rounded at random or not


def rinv(squares, d, eps):
    """(squares ÷ d + eps)^(−1/2)."""
    y = squares / max(d, 1) + eps
    return y.moved(y.value**-0.5, 3 * y.value**-0.5) if isinstance(y, Rounded) else 1 / np.sqrt(y)


def tiny(eps):
    """The smallest normal number of a format; smaller results may be 0."""
    return float(np.finfo(np.float32 if eps > 1e-10 else np.float64).tiny)


def sigmoid(u):
    """1 ÷ (1 + exp(−u)) through exp(−|u|), 0 where that lies below the normal numbers."""
    if isinstance(u, Rounded):
        s = sigmoid(u.value)
        return u.moved(s, 4 * s + tiny(u.eps) / u.unit)
    e = np.exp(-abs(u))
    return np.where(u >= 0, 1, e) / (1 + e)


def shares(q, k, scale, causal):
    """Weights of the keys, with the relative error of attention_forward (docs/validation.md); 0 where they lie below the normal numbers."""
    if isinstance(q, Rounded):
        x = {"Q": q.value, "K": k.value, "scale": scale}
        p, relative, _ = attention.relative_error(q.eps, x, causal)
        return q.moved(p, (p * 2 * relative[..., None] + attention.seen(np, x, causal) * tiny(q.eps)) / q.unit)
    return attention.softmax(np, {"Q": q, "K": k, "scale": scale}, causal)[1]


def normed(y, gamma, eps):
    """(Z, rinv) of rows y."""
    r = rinv((y * y).sum(-1, keepdims=True), y.shape[-1], eps)
    return gamma * (y * r), r


def normed_back(dz, y, r, gamma):
    """The gradients of rows and gamma."""
    along = dz * gamma
    mean = (along * y).sum(-1, keepdims=True) / max(y.shape[-1], 1)
    return along * r - y * (r * r * r * mean), (dz * y * r).sum(0).sum(0)


def fed(R, dY, x):
    """Y, dR and the gradients of gamma2 and the MLP's weights, from R."""
    Z, r = normed(R, x["gamma2"], x["eps"])
    U, G, dH = Z @ x["Wg"], Z @ x["Wu"], dY @ x["Wd"].T
    s = sigmoid(U)
    act = U * s
    H, dG, dU = act * G, dH * act, dH * (G * s + act * G - act * G * s)
    dZ = dG @ x["Wu"].T + dU @ x["Wg"].T
    dR, dgamma = normed_back(dZ, R, r, x["gamma2"])
    made = {"dWg": einsum("bqc,bqf->cf", Z, dU), "dWu": einsum("bqc,bqf->cf", Z, dG), "dWd": einsum("bqf,bqo->fo", H, dY)}
    return {"Y": R + H @ x["Wd"], "dgamma2": dgamma, **made}, dY + dR


def attended(v, dout, p):
    """The gradients of the scores and of the values, from the weights p and the gradient of the mixed values."""
    corr = (dout * (p @ v)).sum(-1, keepdims=True)
    return p * (dout @ v.swapaxes(-1, -2) - corr), p.swapaxes(-1, -2) @ dout


def gradients(x):
    """Every output; x holds arrays, rounded or not."""
    Z, r = normed(x["X"], x["gamma1"], x["eps"])
    q, k, v = (Z @ x[w] for w in ("Wq", "Wk", "Wv"))
    p = shares(q, k, x["scale"], None)
    made, dR = fed(x["X"] + p @ v, x["dY"], x)
    ds, dv = attended(v, dR, p)
    dq, dk = (x["scale"] * y for y in (ds @ k, ds.swapaxes(-1, -2) @ q))
    dZ = dv @ x["Wv"].T + dk @ x["Wk"].T + dq @ x["Wq"].T
    dX, dgamma = normed_back(dZ, x["X"], r, x["gamma1"])
    made |= {f"dW{n}": einsum("bqc,bqj->cj", Z, y) for n, y in (("q", dq), ("k", dk), ("v", dv))}
    return {**made, "dX": dR + dX, "dgamma1": dgamma}


def reference(xp, x, form):
    return gradients(x)


def error_bound(eps, x, out, form):
    """docs/validation.md: the same formulas with random roundings."""
    return bounded(gradients, eps, x)


def bounded(formulas, eps, x):
    """The bounds of the formulas' results; each may also lose what lies below the smallest normal number."""
    return {n: b + tiny(eps) for n, b in bounds(formulas, x, ("X", "dY"), eps).items()}


def baseline(torch, x, form):
    """PyTorch eager, forward and backward; both are timed."""
    return differentiated_by(torch, forward, x)


def differentiated_by(torch, block, x):
    given = {n: x[n].detach().clone().requires_grad_() for n in ("X", "gamma1", "gamma2", *block.WEIGHTS)}
    name, call = block.baseline(torch, {**x, **given}, "forward")

    def run():
        with torch.enable_grad():
            Y = call()["Y"]
        return {"Y": Y.detach(), **{f"d{n}": y for n, y in zip(given, torch.autograd.grad(Y, list(given.values()), x["dY"]), strict=True)}}

    return f"{name}, forward and backward", run


def useful_flops(sizes, form):
    """The forward pass once, each of its products twice backward."""
    return 3 * forward.useful_flops(sizes, "forward")


def lower_bound(sizes, form, capacity):
    """Elements past a cache of `capacity` elements: X, dY, Y, dX, the weights and their gradients once, or the products' 2mnk/√M − 2M
    (Smith et al. 2017)."""
    b, n, d, f = (sizes[s] for s in SIZES)
    weights = 3 * d * d + 3 * d * f
    return max(4 * b * n * d + 2 * weights + 4 * d, 6 * b * n * weights / capacity**0.5 - 36 * capacity)
