"""Decoding: one new token a sequence against its cache of keys and values, to which the new ones are appended in place.

A sequence of length t holds keys and values 0 … t−1; the new ones go to position t, and the token attends to 0 … t. The group of
query heads that share a key head stand together: 1 is multi-head, more is grouped-query, kv_heads = 1 multi-query attention.
Lengths are whole numbers from 0 to max_len − 1, held in the dtype (f32 holds those up to 2²⁴). Index variables: b over sequences,
h over key heads, g over the group, k over positions, d over the features of a key, e over those of a value.
"""

from math import inf

import attention_forward as forward
import numpy as np

from moapipe.algebra import expr as moa
from moapipe.algebra.expr import Definition, Definitions, Expr

SIZES = ("batch", "kv_heads", "group", "max_len", "d_k", "d_v")
PARAMETERS = {"B": ("batch",), "heads": ("kv_heads",), "G": ("group",), "n": ("max_len",), "d": ("d_k", "d_v")}
FORMS: dict[str, dict[str, object]] = {"step": {}}
LENGTHS = moa.array("lengths", "batch")


def last() -> Expr:
    """Each sequence's newest position, ⟨batch⟩."""
    return moa.pointwise("min", moa.pointwise("floor", LENGTHS), moa.size("max_len - 1"))


def appended(cache: Expr, row: Expr, features: str) -> Expr:
    """The cache ⟨batch kv_heads max_len features⟩ with the new row of each head, ⟨batch kv_heads features⟩, at the newest position."""
    longer = moa.omega(lambda old, new: moa.catenate(old, moa.reshape([1, features], new)), (2, 1), cache, row)

    def placed(t: Expr, rows: Expr) -> Expr:
        return moa.omega(lambda here, old: moa.select(here, moa.psi("max_len", rows), old), (0, 1), moa.equal(moa.iota("max_len"), t), moa.take("max_len", rows))

    return moa.omega(lambda t, heads: moa.omega(lambda rows: placed(t, rows), 2, heads), (0, 3), last(), longer)


def shown(x: Expr, hidden: float, cell: int) -> Expr:
    """x ⟨batch … max_len …⟩ with `hidden` behind each sequence's newest position; positions are axis 0 of its cells of that rank."""

    def cut(rows: Expr, t: Expr) -> Expr:
        return moa.omega(lambda seen, row: moa.select(seen, row, hidden), (0, cell - 1), moa.pointwise("<=", moa.iota("max_len"), t), rows)

    return moa.omega(lambda heads, t: moa.omega(lambda rows: cut(rows, t), cell, heads), (len(x.shape) - 1, 0), x, last())


def definitions(form: str) -> Definitions:
    """Q is ⟨batch kv_heads group d_k⟩, K and V the caches ⟨batch kv_heads max_len d_k⟩ and ⟨… d_v⟩, k_new and v_new one row of each,
    lengths ⟨batch⟩, scale a scalar. Outputs: keys and values, in the place of K and V, and out ⟨batch kv_heads group d_v⟩."""
    Q, K = moa.array("Q", "batch", "kv_heads", "group", "d_k"), moa.array("K", "batch", "kv_heads", "max_len", "d_k")
    V, scale = moa.array("V", "batch", "kv_heads", "max_len", "d_v"), moa.scalar_array("scale")
    k_new, v_new = moa.array("k_new", "batch", "kv_heads", "d_k"), moa.array("v_new", "batch", "kv_heads", "d_v")
    keys = Definition("keys", ("b", "h", "k", "d"), appended(K, k_new, "d_k"))
    values = Definition("values", ("b", "h", "k", "e"), appended(V, v_new, "d_v"))
    product = moa.omega(lambda q, k: moa.inner("+", "*", q, moa.transpose(k), index="d"), (2, 2), Q, keys.array)
    scores = Definition("scores", ("b", "h", "g", "k"), scale * product)
    masked = Definition("masked", ("b", "h", "g", "k"), shown(scores.array, -inf, 1))
    there = Definition("shown", ("b", "h", "k", "e"), shown(values.array, 0.0, 2))
    mixed = forward.mix(("b", "h", "g"), masked.array, there.array, (2, 2))
    steps = (keys, values, scores, masked, there, *mixed)
    return Definitions(SIZES, (Q, K, V, k_new, v_new, LENGTHS, scale), steps, ("out", "keys", "values"), (("keys", "K"), ("values", "V")))


defaults = forward.defaults


def inputs(rng, sizes, form):
    """Full caches: the new token is the last that fits."""
    b, h, g, n, d, e = (sizes[s] for s in SIZES)
    shapes = {"Q": (b, h, g, d), "K": (b, h, n, d), "V": (b, h, n, e), "k_new": (b, h, d), "v_new": (b, h, e)}
    return {**{name: rng.standard_normal(s) for name, s in shapes.items()}, "lengths": np.full(b, max(n - 1, 0.0)), **defaults(sizes)}


def _with_lengths(x, lengths):
    """Other lengths, and NaN in the caches from there on."""
    unused = np.arange(x["K"].shape[2]) >= lengths[:, None]
    return {**x, "lengths": lengths, **{c: np.where(unused[:, None, :, None], np.nan, x[c]) for c in "KV"}}


STRESS = {
    "all lengths": lambda x, form: _with_lengths(x, np.floor(np.linspace(0, max(x["K"].shape[2] - 1, 0), len(x["lengths"]) + 1)[:-1])),
    "half full": lambda x, form: _with_lengths(x, np.full(len(x["lengths"]), x["K"].shape[2] // 2.0)),
    "empty": lambda x, form: _with_lengths(x, np.zeros(len(x["lengths"]))),
    "logits of ±700": lambda x, form: {**x, "Q": x["Q"] * (700 / max(abs(forward.scores(x)).max(initial=0), 1e-9))},
}


def _after(xp, x):
    """The caches with the new rows, and which positions each sequence sees."""
    at = xp.arange(x["K"].shape[2])
    here = (at == x["lengths"][:, None])[:, None, :, None]
    return xp.where(here, x["k_new"][:, :, None], x["K"]), xp.where(here, x["v_new"][:, :, None], x["V"]), at <= x["lengths"][:, None]


def _weights(xp, x):
    """Scores (−∞ where unseen) and weights that sum to 1."""
    keys, _, seen = _after(xp, x)
    s = xp.where(seen[:, None, None], forward.scores({**x, "K": xp.where(seen[:, None, :, None], keys, 0)}), -inf)
    return s, forward.shares(xp, s)[0]


def reference(xp, x, form):
    keys, values, seen = _after(xp, x)
    _, w = _weights(xp, x)
    return {"out": w @ xp.where(seen[:, None, :, None], values, 0), "keys": keys, "values": values}


def baseline(torch, x, form):
    """Append by indexing, then PyTorch's attention, on the filled part alone where all lengths agree, else with a mask."""
    b = x["Q"].shape[0]
    at, rows = x["lengths"].long(), torch.arange(b)
    seen = torch.arange(x["K"].shape[2]) <= at[:, None]
    full = int(at.max()) + 1 if b else 0
    alike = bool((at == at[0]).all()) if b else True
    mask, q, scale = None if alike else seen[:, None, None, :full], x["Q"], float(x["scale"])

    def step():
        x["K"][rows, :, at], x["V"][rows, :, at] = x["k_new"], x["v_new"]
        keys, values = x["K"][:, :, :full], x["V"][:, :, :full]
        return {"out": torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale)}

    return "index_put, scaled_dot_product_attention", step


def _rises(s):
    """How often a running maximum over any part of a row may rise: the length of the row's longest increasing subsequence."""
    ends = np.full(s.shape, inf)
    for k in range(s.shape[-1]):
        here = s[..., k : k + 1]
        np.put_along_axis(ends, (ends < here).sum(-1, keepdims=True), here, -1)
    return (ends < inf).sum(-1)


def error_bound(eps, x, out, form):
    """docs/validation.md: that of attention_forward over the positions that are seen, folded in any parts; appending is exact."""
    s, w = _weights(np, x)
    keys, values, seen = (np.nan_to_num(a) for a in _after(np, x))
    n, d = keys.shape[2:]
    size = np.where(seen[:, None, None] > 0, forward.scores({**x, "Q": abs(x["Q"]), "K": abs(keys), "scale": abs(x["scale"])}), 0).max(-1, initial=0)
    rises = _rises(s) + 1
    relative = eps / 2 * ((d + 12 + 3 * rises) * size + 6 * rises + n + 6)
    zero = {name: np.zeros_like(out[name]) for name in ("keys", "values")}
    return {"out": 2 * relative[..., None] * (w @ np.where(seen[:, None, :, None] > 0, abs(values), 0)), **zero}


def useful_flops(sizes, form):
    b, h, g, n, d, e = (sizes[s] for s in SIZES)
    return 2 * b * h * g * n * (d + e)


def lower_bound(sizes, form, capacity):
    """Elements past any cache: both caches once, the queries, the new rows in and out, the results."""
    b, h, g, n, d, e = (sizes[s] for s in SIZES)
    return b * h * (n * (d + e) + g * (d + e) + 2 * (d + e))
