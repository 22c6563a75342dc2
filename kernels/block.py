"""A transformer block as Llama-like models have it, forward: pre-norm, grouped query heads, rotated queries and keys, causal, an output
projection, a gated MLP.

Z1 = norm(X); queries and keys of each head are turned by their positions; R = X + attention·Wo; Z2 = norm(R); Y = R + gated MLP(Z2).
A head has 2·pairs features; the weights of heads have axes of their own, so that h_kv × group query heads need no division. Index
variables: b over sequences, q and k over positions, h over key heads, g over the group, r over the two of a pair, p over pairs, e
over a value's features, c, f and o as in block_published.
"""

from math import inf, prod

import attention_forward as attention
import block_published as published
import numpy as np
import rope

from moapipe.algebra import expr as moa
from moapipe.algebra.expr import Definition, Definitions, Expr

SIZES = ("batch", "seq", "d", "d_ff", "kv_heads", "group", "pairs")
PARAMETERS = {"B": ("batch",), "n": ("seq",), "d": ("d",), "ff": ("d_ff",), "heads": ("kv_heads",), "G": ("group",), "pairs": ("pairs",)}
FORMS: dict[str, dict[str, object]] = {"forward": {}}
WEIGHTS = {
    "Wq": ("d", "kv_heads", "group", 2, "pairs"), "Wk": ("d", "kv_heads", 2, "pairs"), "Wv": ("d", "kv_heads", "2 * pairs"),
    "Wo": ("kv_heads", "group", "2 * pairs", "d"), "Wg": ("d", "d_ff"), "Wu": ("d", "d_ff"), "Wd": ("d_ff", "d"),
}
CAUSAL = "top_left"


def project(name: str, axes: tuple[str, ...], x: Expr, w: Expr, order: tuple[int, ...]) -> Definition:
    """x ⟨batch seq d⟩ times w ⟨d …⟩, heads moved in front of the positions by the permutation."""
    return Definition(name, axes, moa.transpose(moa.inner("+", "*", x, w, index="c"), order))


def scored(Q: Expr, K: Expr) -> Expr:
    """Σ over both of a pair and all pairs of Q·K, ⟨batch kv_heads group seq seq⟩."""

    def dot(a: Expr, b: Expr) -> Expr:
        return moa.reduce("+", moa.omega(lambda row: moa.reduce("+", row, index="p"), 1, a * b), index="r")

    def row(q: Expr, keys: Expr) -> Expr:
        return moa.omega(dot, (2, 2), q, keys)

    return moa.omega(lambda queries, keys: moa.omega(row, (2, 3), queries, keys), (4, 3), Q, K)


def joined(heads: Expr, Wo: Expr) -> Expr:
    """Σ over all query heads and their features of heads·Wo, ⟨batch seq d⟩."""

    def token(x: Expr, w: Expr) -> Expr:
        parts = moa.omega(lambda a, b: moa.inner("+", "*", a, b, index="e"), (1, 2), x, w)
        return moa.reduce("+", moa.omega(lambda group: moa.reduce("+", group, index="g"), 2, parts), index="h")

    return moa.omega(token, (3, 4), moa.transpose(heads, (0, 2, 3, 1, 4)), Wo)


def definitions(form: str) -> Definitions:
    """X and Y are ⟨batch seq d⟩, gamma1 and gamma2 have d elements, the weights the shapes in WEIGHTS, tables ⟨seq 2 pairs⟩ (cos and
    sin), eps and scale scalars."""
    X, gamma1, gamma2 = moa.array("X", "batch", "seq", "d"), moa.array("gamma1", "d"), moa.array("gamma2", "d")
    eps, scale, tables = moa.scalar_array("eps"), moa.scalar_array("scale"), moa.array("tables", "seq", 2, "pairs")
    W = {name: moa.array(name, *shape) for name, shape in WEIGHTS.items()}
    steps = published.normalise("1", X, gamma1, eps)
    Z = steps[-1].array
    Q = project("Q", ("b", "h", "g", "q", "r", "p"), Z, W["Wq"], (0, 3, 1, 2, 4, 5))
    K = project("K", ("b", "h", "k", "r", "p"), Z, W["Wk"], (0, 2, 1, 3, 4))
    V = project("V", ("b", "h", "k", "e"), Z, W["Wv"], (0, 2, 1, 3))
    Qr = Definition("Qr", Q.axes, rope.turned(Q.array, tables, False))
    Kr = Definition("Kr", K.axes, rope.turned(K.array, tables, False))
    scores = Definition("scores", ("b", "h", "g", "q", "k"), scale * scored(Qr.array, Kr.array))
    mask = moa.transpose(moa.outer("<=", moa.iota("seq"), moa.iota("seq")))
    masked = Definition("masked", scores.axes, moa.omega(lambda s, v: moa.select(v, s, -inf), (2, 2), scores.array, mask))
    steps += [Q, K, V, Qr, Kr, scores, masked, *attention.mix(("b", "h", "g", "q"), masked.array, V.array, (3, 2))]
    A = Definition("A", ("b", "q", "o"), joined(steps[-1].array, W["Wo"]))
    R = Definition("R", ("b", "q", "c"), X + A.array)
    steps += [A, R, *published.normalise("2", R.array, gamma2, eps)]
    steps += published.feed(steps[-1].array, W["Wg"], W["Wu"], W["Wd"])
    steps += [Definition("Y", ("b", "q", "o"), R.array + steps[-1].array)]
    return Definitions(SIZES, (X, gamma1, gamma2, *W.values(), tables, eps, scale), tuple(steps), ("Y",))


def defaults(sizes):
    """Scalars that a caller may leave out."""
    return {"eps": 1e-6, "scale": max(2 * sizes["pairs"], 1) ** -0.5}


def inputs(rng, sizes, form):
    """Normal rows; weights such that every array between is of the size of X."""
    full = {**sizes, "2 * pairs": 2 * sizes["pairs"], 2: 2}
    heads = sizes["kv_heads"] * sizes["group"] * 2 * sizes["pairs"]
    weights = {k: rng.standard_normal([full[s] for s in shape]) * max(heads if k == "Wo" else full[shape[0]], 1) ** -0.5 for k, shape in WEIGHTS.items()}
    gammas = {g: rng.uniform(0.5, 1.5, sizes["d"]) for g in ("gamma1", "gamma2")}
    X = rng.standard_normal((sizes["batch"], sizes["seq"], sizes["d"]))
    return {"X": X, **gammas, **weights, "tables": rope.tables(sizes["seq"], sizes["pairs"]), **defaults(sizes)}


STRESS = published.STRESS


def _heads(y, w, order):
    """y ⟨batch seq d⟩ times w ⟨d …⟩, axes in the order that `project` gives them."""
    return (y @ w.reshape(w.shape[0], prod(w.shape[1:]))).reshape(*y.shape[:2], *w.shape[1:]).transpose(np.argsort(order))


def _flat(y):
    """The two of a pair and the pairs as one axis of features."""
    return y.reshape(*y.shape[:-2], y.shape[-2] * y.shape[-1])


ORDERS = {"Wq": (0, 3, 1, 2, 4, 5), "Wk": (0, 2, 1, 3, 4), "Wv": (0, 2, 1, 3)}


def stages(xp, x):
    """Every array between X and Y: Z1, the projections, turned queries and keys, scores, shares, heads, R, Z2, U, G, H, Y."""
    Z1 = published.normed(xp, x["X"], x["gamma1"], x["eps"])
    q, k, v = (_heads(Z1, x[w], o) for w, o in ORDERS.items())
    Q, K = (_flat(rope.apply(xp, y, x["tables"], False)) for y in (q, k))
    s = attention.scores({"Q": Q, "K": K[:, :, None], "scale": x["scale"]})
    s = xp.where(attention.seen(xp, {"Q": Q, "K": K}, CAUSAL), s, -inf)
    p = attention.shares(xp, s)[0]
    out = p @ v[:, :, None]
    R = x["X"] + xp.einsum("bhgqe,hgeo->bqo", out, x["Wo"])
    return {"Z1": Z1, "q": q, "k": k, "Q": Q, "K": K, "V": v, "p": p, "out": out, "R": R, **published.fed(xp, R, x)}


def reference(xp, x, form):
    return {"Y": stages(xp, x)["Y"]}


def baseline(torch, x, form):
    """PyTorch eager: its norm, products, attention and silu; queries and keys turned as models write it."""
    F, eps, scale, (c, s) = torch.nn.functional, float(x["eps"]), float(x["scale"]), x["tables"].unbind(1)
    (d, h, g), n = x["Wq"].shape[:3], x["Wq"].shape[-1]

    def turned(y):
        a, b = y[..., :n], y[..., n:]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def run():
        Z = F.rms_norm(x["X"], x["gamma1"].shape, x["gamma1"], eps)
        q, k, v = ((Z @ x[w].reshape(d, prod(x[w].shape[1:]))).unflatten(-1, (x[w][0].numel() // max(2 * n, 1), 2 * n)).transpose(1, 2) for w in ("Wq", "Wk", "Wv"))
        k, v = (y.repeat_interleave(g, 1) for y in (turned(k), v))
        out = F.scaled_dot_product_attention(turned(q), k, v, is_causal=True, scale=scale)
        R = x["X"] + out.transpose(1, 2).flatten(2) @ x["Wo"].reshape(h * g * 2 * n, d)
        Z = F.rms_norm(R, x["gamma2"].shape, x["gamma2"], eps)
        return {"Y": R + (F.silu(Z @ x["Wg"]) * (Z @ x["Wu"])) @ x["Wd"]}

    return "rms_norm, mm, scaled_dot_product_attention, silu", run


def error_bound(eps, x, out, form):
    """docs/validation.md: as block_published, with the turning of queries and keys and the output projection between."""
    u, y = eps / 2, stages(np, x)
    dZ = published.normed_error(u, x["X"], x["gamma1"], x["eps"], 0 * x["X"])
    size = {w: _heads(abs(y["Z1"]), abs(x[w]), o) for w, o in ORDERS.items()}
    dq, dk, dV = (_heads(dZ, abs(x[w]), o) + u * (x[w].shape[0] + 1) * size[w] for w, o in ORDERS.items())
    c, s = (abs(x["tables"][:, j]) for j in (0, 1))
    dQ, dK = (_flat((e + 3 * u * abs(m)) * c[:, None] + (e + 3 * u * abs(m))[..., ::-1, :] * s[:, None]) for e, m in ((dq, y["q"]), (dk, y["k"])))
    K = y["K"][:, :, None]
    shifts = x["scale"] * (dQ @ abs(K).swapaxes(-1, -2) + (abs(y["Q"]) + dQ) @ dK[:, :, None].swapaxes(-1, -2))
    p, relative, _ = attention.relative_error(eps, {"Q": y["Q"], "K": K, "scale": x["scale"]}, CAUSAL)
    w = np.expm1(np.minimum(2 * shifts.max(-1, initial=0) + 2 * relative, 50))[..., None]
    dout = (1 + w) * (p @ dV[:, :, None]) + w * (p @ abs(y["V"])[:, :, None])
    terms = np.prod(x["Wo"].shape[:3])
    dR = np.einsum("bhgqe,hgeo->bqo", dout + u * (terms + 2) * (abs(y["out"]) + dout), abs(x["Wo"])) + u * abs(y["R"])
    return {"Y": published.fed_error(eps, x, y, dR)}


def useful_flops(sizes, form):
    b, n, d, f, h, g, p = (sizes[s] for s in SIZES)
    return b * n * (8 * d * p * h * (g + 1) + 4 * (n + 1) * h * g * p + 6 * d * f)


def lower_bound(sizes, form, capacity):
    """Elements past a cache of `capacity` elements: X, Y and the weights once, or the products' 2mnk/√M − 2M (Smith et al. 2017)."""
    b, n, d, f, h, g, p = (sizes[s] for s in SIZES)
    weights = 4 * d * h * (g + 1) * p + 3 * d * f
    return max(2 * b * n * d + weights + 2 * d, 2 * b * n * weights / capacity**0.5 - 14 * capacity)
