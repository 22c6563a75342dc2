"""Scaled dot-product attention, forward: out = softmax(scale·Q·Kᵀ, masked)·V, and on request each row's log-sum-exp.

`batch` is the product of all leading axes, batch and heads. A row that sees no key has output 0 and log-sum-exp −∞.
Index variables: h over batch, q over queries, k over keys, d over the d_k features of a key, e over the d_v features of a value.
"""

from math import inf

import numpy as np

from moapipe.algebra import expr as moa
from moapipe.algebra.expr import Definition, Definitions, Expr

SIZES = ("batch", "q_len", "kv_len", "d_k", "d_v")
PARAMETERS = {"B": ("batch",), "n": ("q_len", "kv_len"), "d": ("d_k", "d_v")}
FORMS = {
    "full": {"causal": None, "lse": False},
    "full_lse": {"causal": None, "lse": True},
    "causal": {"causal": "top_left", "lse": False},
    "causal_lse": {"causal": "top_left", "lse": True},
    "causal_bottom_right": {"causal": "bottom_right", "lse": False},
    "causal_bottom_right_lse": {"causal": "bottom_right", "lse": True},
}


def visible(alignment: str) -> Expr:
    """Key k is visible to query q where k ≤ q + offset: offset 0 aligns the first query with the first key (PyTorch's
    is_causal), offset kv_len − q_len the last query with the last key. Shape ⟨q_len kv_len⟩."""
    last = moa.iota("q_len") if alignment == "top_left" else moa.iota("q_len") + moa.size("kv_len - q_len")
    return moa.transpose(moa.outer("<=", moa.iota("kv_len"), last))


def definitions(form: str) -> Definitions:
    """Q is ⟨batch q_len d_k⟩, K ⟨batch kv_len d_k⟩, V ⟨batch kv_len d_v⟩, scale a scalar; out ⟨batch q_len d_v⟩, lse ⟨batch q_len⟩."""
    return attend(SIZES, FORMS[form]["causal"], FORMS[form]["lse"])


def attend(sizes, causal, lse, group=()) -> Definitions:
    """The same with further axes `group` between batch and q_len in Q, out and lse: query heads that share a head of K and V."""
    h, ranks = ("h", "g") if group else ("h",), (2 + len(group), 2)
    Q, scale = moa.array("Q", "batch", *group, "q_len", "d_k"), moa.scalar_array("scale")
    K, V = moa.array("K", "batch", "kv_len", "d_k"), moa.array("V", "batch", "kv_len", "d_v")
    scores = Definition("scores", (*h, "q", "k"), scale * moa.omega(lambda q, k: moa.inner("+", "*", q, moa.transpose(k), index="d"), ranks, Q, K))
    steps, seen = [scores], scores.array
    if causal:
        masked = moa.omega(lambda s, v: moa.select(v, s, -inf), (2, 2), seen, visible(causal))
        steps.append(Definition("masked", (*h, "q", "k"), masked))
        seen = steps[-1].array
    steps += mix((*h, "q"), seen, V, ranks)
    steps += [Definition("lse", (*h, "q"), steps[-6].array + moa.log(steps[-3].array))] if lse else []
    return Definitions(sizes, (Q, K, V, scale), tuple(steps), ("out", "lse") if lse else ("out",))


def mix(rows, seen, V, ranks) -> list[Definition]:
    """Softmax of the scores `seen` over their last axis, and the values mixed by it: peak, safe, weights, total, mixed, out. Index
    variables: `rows`, k over keys, e over the features of a value; `ranks` are those of the cells of weights and values."""
    peak = Definition("peak", rows, moa.omega(lambda row: moa.reduce("max", row, index="k"), 1, seen))
    safe = Definition("safe", rows, moa.select(moa.equal(peak.array, -inf), 0, peak.array))
    weights = Definition("weights", (*rows, "k"), moa.exp(moa.omega(lambda row, m: row - m, (1, 0), seen, safe.array)))
    total = Definition("total", rows, moa.omega(lambda row: moa.reduce("+", row, index="k"), 1, weights.array))
    mixed = Definition("mixed", (*rows, "e"), moa.omega(lambda w, v: moa.inner("+", "*", w, v, index="k"), ranks, weights.array, V))
    out = Definition("out", (*rows, "e"), moa.omega(lambda row, t: moa.select(moa.equal(t, 0), 0, row / t), (1, 0), mixed.array, total.array))
    return [peak, safe, weights, total, mixed, out]


LEADING = "batch"
STRESS = {f"logits of ±{top}": lambda x, form, top=top: {**x, "Q": x["Q"] * (top / max(abs(scores(x)).max(initial=0), 1e-9))} for top in (100, 700)}


def defaults(sizes):
    """Scalars that a caller may leave out."""
    return {"scale": max(sizes["d_k"], 1) ** -0.5}


def inputs(rng, sizes, form):
    b, q, k, d, e = (sizes[s] for s in SIZES)
    return {"Q": rng.standard_normal((b, q, d)), "K": rng.standard_normal((b, k, d)), "V": rng.standard_normal((b, k, e)), **defaults(sizes)}


def scores(x):
    return x["scale"] * (x["Q"] @ x["K"].swapaxes(-1, -2))


def seen(xp, x, causal):
    """Which key each query sees, ⟨q_len kv_len⟩."""
    q, k = x["Q"].shape[-2], x["K"].shape[-2]
    offset = {None: k, "top_left": 0, "bottom_right": k - q}[causal]
    return xp.arange(k) <= xp.arange(q)[:, None] + offset


def softmax(xp, x, causal):
    """Scores (−∞ where unseen), weights that sum to 1 or are all 0, log-sum-exp."""
    s = xp.where(seen(xp, x, causal), scores(x), -inf)
    return s, *shares(xp, s)


def shares(xp, s):
    """Weights of scores (−∞: none) that sum to 1 over the last axis or are all 0, and their log-sum-exp."""
    top = s.max(-1, initial=-inf)
    w = xp.exp(s - xp.where(top == -inf, 0, top)[..., None])
    total = w.sum(-1)
    return w / xp.where(total == 0, 1, total)[..., None], xp.where(total == 0, -inf, top + xp.log(xp.where(total == 0, 1, total)))


def reference(xp, x, form):
    _, w, lse = softmax(xp, x, FORMS[form]["causal"])
    return {"out": w @ x["V"], **({"lse": lse} if FORMS[form]["lse"] else {})}


def attention(torch, q, k, v, x, causal):
    """PyTorch's own attention, heads in axis 1. It aligns top-left by itself; bottom-right takes a mask."""
    call, mask = torch.nn.functional.scaled_dot_product_attention, seen(torch, x, causal) if causal == "bottom_right" else None
    return lambda: call(q, k, v, attn_mask=mask, is_causal=causal == "top_left", scale=float(x["scale"]))


def baseline(torch, x, form):
    """PyTorch returns no log-sum-exp."""
    call = attention(torch, x["Q"][None], x["K"][None], x["V"][None], x, FORMS[form]["causal"])
    return "scaled_dot_product_attention", lambda: {"out": call()[0]}


def relative_error(eps, x, causal):
    """The normalised weights, and the relative error of a row's sums of them, as in docs/validation.md."""
    s, w, _ = softmax(np, x, causal)
    n, d = x["K"].shape[-2:]
    size = np.where(seen(np, x, causal), scores({**x, "Q": abs(x["Q"]), "K": abs(x["K"]), "scale": abs(x["scale"])}), 0).max(-1, initial=0)
    running = np.maximum.accumulate(s, -1)
    rises = (running[..., 1:] > running[..., :-1]).sum(-1)
    return w, eps / 2 * ((d + 12 + 3 * rises) * size + 6 * rises + n + 6), 3 * eps * (size + np.log(n + 1) + 1)


def error_bound(eps, x, out, form):
    """Scores, exponentials and rescalings err by their weight, folds over the keys by their depth."""
    w, relative, logarithm = relative_error(eps, x, FORMS[form]["causal"])
    return {"out": 2 * relative[..., None] * (w @ abs(x["V"])), **({"lse": relative + logarithm} if FORMS[form]["lse"] else {})}


def pairs(sizes, causal):
    """Query-key pairs that are seen, of one head."""
    q, k = sizes["q_len"], sizes["kv_len"]
    offset = {None: k, "top_left": 0, "bottom_right": k - q}[causal]
    return int(np.clip(np.arange(q) + 1 + offset, 0, k).sum())


def useful_flops(sizes, form):
    return 2 * sizes["batch"] * pairs(sizes, FORMS[form]["causal"]) * (sizes["d_k"] + sizes["d_v"])


def lower_bound(sizes, form, capacity):
    """Elements past a cache of `capacity` elements: every array once, or pairs·d²/M (Saha & Ye 2024, arXiv 2402.07443, M ≥ d²)."""
    b, q, k, d, e = (sizes[s] for s in SIZES)
    return b * max(q * d + k * (d + e) + q * e, pairs(sizes, FORMS[form]["causal"]) * d * e / capacity)
