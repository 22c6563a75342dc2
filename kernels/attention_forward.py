"""Scaled dot-product attention, forward: out = softmax(scale·Q·Kᵀ, masked)·V, and on request each row's log-sum-exp.

`batch` is the product of all leading axes, batch and heads. A row that sees no key has output 0 and log-sum-exp −∞.
Index variables: h over batch, q over queries, k over keys, d over the d_k features of a key, e over the d_v features of a value.
"""

from math import inf

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
    offset = moa.size("0" if alignment == "top_left" else "kv_len - q_len")
    return moa.transpose(moa.outer("<=", moa.iota("kv_len"), moa.iota("q_len") + offset))


def definitions(form: str) -> Definitions:
    """Q is ⟨batch q_len d_k⟩, K ⟨batch kv_len d_k⟩, V ⟨batch kv_len d_v⟩, scale a scalar; out ⟨batch q_len d_v⟩, lse ⟨batch q_len⟩."""
    option = FORMS[form]
    Q, scale = moa.array("Q", "batch", "q_len", "d_k"), moa.scalar_array("scale")
    K, V = moa.array("K", "batch", "kv_len", "d_k"), moa.array("V", "batch", "kv_len", "d_v")
    scores = Definition("scores", ("h", "q", "k"), scale * moa.omega(lambda q, k: moa.inner("+", "*", q, moa.transpose(k), index="d"), (2, 2), Q, K))
    steps, seen = [scores], scores.array
    if option["causal"]:
        masked = moa.omega(lambda s, v: moa.select(v, s, -inf), (2, 2), seen, visible(option["causal"]))
        steps.append(Definition("masked", ("h", "q", "k"), masked))
        seen = steps[-1].array
    peak = Definition("peak", ("h", "q"), moa.omega(lambda row: moa.reduce("max", row, index="k"), 1, seen))
    safe = Definition("safe", ("h", "q"), moa.select(moa.equal(peak.array, -inf), 0, peak.array))
    weights = Definition("weights", ("h", "q", "k"), moa.exp(moa.omega(lambda row, m: row - m, (1, 0), seen, safe.array)))
    total = Definition("total", ("h", "q"), moa.omega(lambda row: moa.reduce("+", row, index="k"), 1, weights.array))
    mixed = Definition("mixed", ("h", "q", "e"), moa.omega(lambda w, v: moa.inner("+", "*", w, v, index="k"), (2, 2), weights.array, V))
    out = Definition("out", ("h", "q", "e"), moa.omega(lambda row, t: moa.select(moa.equal(t, 0), 0, row / t), (1, 0), mixed.array, total.array))
    lse = Definition("lse", ("h", "q"), peak.array + moa.log(total.array))
    steps += [peak, safe, weights, total, mixed, out, *([lse] if option["lse"] else [])]
    return Definitions(SIZES, (Q, K, V, scale), tuple(steps), ("out", "lse") if option["lse"] else ("out",))
