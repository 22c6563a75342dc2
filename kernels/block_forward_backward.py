"""A transformer block as Llama-like models have it, forward and backward in one: Y, and the gradients of X and of all weights from dY,
derived from block.

Nothing is saved between the passes but what this kernel keeps for itself. The gradients of a key head's weights are sums over the
query heads of its group; a rotation's gradient is the rotation back. Index variables as in block.
"""

import block as forward
import block_published_forward_backward as published
import numpy as np

from moapipe.algebra.adjoint import Adjoint
from moapipe.lab.rounded import einsum

SIZES = ("batch", "seq", "d", "d_ff", "kv_heads", "group", "pairs")
PARAMETERS = {"B": ("batch",), "n": ("seq",), "d": ("d",), "ff": ("d_ff",), "heads": ("kv_heads",), "G": ("group",), "pairs": ("pairs",)}
FORMS: dict[str, dict[str, object]] = {"forward_backward": {}}


def definitions(form: str) -> Adjoint:
    """X, dY and Y are ⟨batch seq d⟩; the others as in block, dA has the shape of A."""
    return published.differentiated(forward)


def defaults(sizes):
    """Scalars that a caller may leave out."""
    return forward.defaults(sizes)


def inputs(rng, sizes, form):
    """Those of the forward pass, and a cotangent."""
    return {**forward.inputs(rng, sizes, "forward"), "dY": rng.standard_normal((sizes["batch"], sizes["seq"], sizes["d"]))}


STRESS = published.STRESS


def turned(y, tables, way):
    """Pairs y ⟨… seq 2 pairs⟩ turned by their positions, forward (1) or back (−1)."""
    sin = np.stack([-way * tables[:, 1], way * tables[:, 1]], -2)
    return y * tables[:, :1] + y[..., ::-1, :] * sin


def gradients(x):
    """Every output; x holds arrays, rounded or not."""
    Z, r = published.normed(x["X"], x["gamma1"], x["eps"])
    q, k = (turned(einsum(s, Z, x[w]), x["tables"], 1) for s, w in (("bqc,chgrp->bhgqrp", "Wq"), ("bkc,chrp->bhkrp", "Wk")))
    width = 2 * x["tables"].shape[-1]
    q, k, v = q.reshape(*q.shape[:-2], width), k.reshape(*k.shape[:-2], width)[:, :, None], einsum("bkc,che->bhke", Z, x["Wv"])[:, :, None]
    p = published.shares(q, k, x["scale"], forward.CAUSAL)
    out = p @ v
    made, dR = published.fed(x["X"] + einsum("bhgqe,hgeo->bqo", out, x["Wo"]), x["dY"], x)
    ds, dv = published.attended(v, einsum("bqo,hgeo->bhgqe", dR, x["Wo"]), p)
    dq, dk, dv = x["scale"] * (ds @ k), x["scale"] * (ds.swapaxes(-1, -2) @ q).sum(2), dv.sum(2)
    dq, dk = (turned(y.reshape(*y.shape[:-1], 2, width // 2), x["tables"], -1) for y in (dq, dk))
    dZ = einsum("bhke,che->bkc", dv, x["Wv"]) + einsum("bhkrp,chrp->bkc", dk, x["Wk"]) + einsum("bhgqrp,chgrp->bqc", dq, x["Wq"])
    dX, dgamma = published.normed_back(dZ, x["X"], r, x["gamma1"])
    made |= {"dWq": einsum("bqc,bhgqrp->chgrp", Z, dq), "dWk": einsum("bkc,bhkrp->chrp", Z, dk), "dWv": einsum("bkc,bhke->che", Z, dv),
             "dWo": einsum("bhgqe,bqo->hgeo", out, dR)}
    return {**made, "dX": dR + dX, "dgamma1": dgamma}


def reference(xp, x, form):
    return gradients(x)


def error_bound(eps, x, out, form):
    """docs/validation.md: the same formulas with random roundings."""
    return published.bounded(gradients, eps, x)


def baseline(torch, x, form):
    """PyTorch eager, forward and backward; both are timed."""
    return published.differentiated_by(torch, forward, x)


def useful_flops(sizes, form):
    """The forward pass once, each of its products twice backward."""
    return 3 * forward.useful_flops(sizes, "forward")


def lower_bound(sizes, form, capacity):
    """Elements past a cache of `capacity` elements: X, dY, Y, dX, the weights and their gradients once, or the products' 2mnk/√M − 2M
    (Smith et al. 2017)."""
    b, n, d, f, h, g, p = (sizes[s] for s in SIZES)
    weights = 4 * d * h * (g + 1) * p + 3 * d * f
    return max(4 * b * n * d + 2 * weights + 4 * d, 6 * b * n * weights / capacity**0.5 - 42 * capacity)
