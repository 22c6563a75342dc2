"""Scaled dot-product attention, forward and backward in one: out, dQ, dK, dV from Q, K, V and dout, derived from attention_forward.

Nothing is saved between the passes but what this kernel keeps for itself. `batch` is the product of all leading axes, batch and
heads. A row that sees nothing has output and gradient 0. Index variables as in attention_forward and attention_backward.
"""

import attention_backward as backward
import attention_forward as forward

from moapipe.algebra.adjoint import Adjoint, adjoint

SIZES = ("batch", "q_len", "kv_len", "d_k", "d_v")
PARAMETERS = {"B": ("batch",), "n": ("q_len", "kv_len"), "d": ("d_k", "d_v")}
FORMS = {
    "full": {"causal": None},
    "causal": {"causal": "top_left"},
    "causal_bottom_right": {"causal": "bottom_right"},
}
LEADING = "batch"


def definitions(form: str) -> Adjoint:
    """Q is ⟨batch q_len d_k⟩, K ⟨batch kv_len d_k⟩, V ⟨batch kv_len d_v⟩, scale a scalar, dout and out ⟨batch q_len d_v⟩; dX as X."""
    attention = forward.attend(SIZES, FORMS[form]["causal"], lse=False)
    return adjoint(attention, of=("out",), wrt=("Q", "K", "V"), outputs=("out",), laws=("divide_first",), after=("corr",))


def defaults(sizes):
    """Scalars that a caller may leave out."""
    return forward.defaults(sizes)


def inputs(rng, sizes, form):
    """Those of the forward pass, and a cotangent."""
    return {**forward.inputs(rng, sizes, form), "dout": rng.standard_normal((sizes["batch"], sizes["q_len"], sizes["d_v"]))}


STRESS = forward.STRESS


def _grouped(x):
    """The same for attention_backward: groups of one query head."""
    return {k: v[:, None] if k in ("Q", "dout", "out", "lse") else v for k, v in x.items()}


def reference(xp, x, form):
    _, p, lse = forward.softmax(xp, x, FORMS[form]["causal"])
    out = p @ x["V"]
    made = backward.reference(xp, _grouped({**x, "out": out, "lse": lse}), form)
    return {"out": out, **made, "dQ": made["dQ"][:, 0]}


def baseline(torch, x, form):
    """PyTorch's forward and backward pass; both are timed."""
    given = q, k, v = [x[n].detach().clone()[None].requires_grad_() for n in "QKV"]
    call, dout = forward.attention(torch, q, k, v, x, FORMS[form]["causal"]), x["dout"][None]

    def run():
        with torch.enable_grad():
            out = call()
        return {"out": out.detach()[0], **{f"d{n}": y[0] for n, y in zip("QKV", torch.autograd.grad(out, given, dout), strict=True)}}

    return "scaled_dot_product_attention forward and backward", run


def error_bound(eps, x, out, form):
    """docs/validation.md: the forward's bound; then the backward's, with the forward's error in the shares and in out."""
    p, relative, _ = forward.relative_error(eps, x, FORMS[form]["causal"])
    front = 2 * relative[..., None] * (p @ abs(x["V"]))
    corr, corr_error = ((abs(x["dout"]) * abs(y)).sum(-1)[:, None] for y in (out["out"], front))
    made = backward.bound(eps, _grouped(x), p[:, None], (2 * relative[..., None] * p + backward.tiny(eps))[:, None], corr, corr_error)
    return {"out": front, **made, "dQ": made["dQ"][:, 0]}


def useful_flops(sizes, form):
    """Two products forward and four backward over the pairs that are seen: the scores serve both."""
    return 2 * sizes["batch"] * forward.pairs(sizes, FORMS[form]["causal"]) * 3 * (sizes["d_k"] + sizes["d_v"])


def lower_bound(sizes, form, capacity):
    """Elements past a cache of `capacity` elements: every array once, or pairs·d²/M (Saha & Ye 2024, arXiv 2402.07443, M ≥ d²)."""
    b, q, k, d, e = (sizes[s] for s in SIZES)
    return b * max(2 * (q * d + k * d + k * e + q * e), forward.pairs(sizes, FORMS[form]["causal"]) * d * e / capacity)
