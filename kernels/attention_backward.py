"""Scaled dot-product attention, backward: dQ, dK, dV from dout, derived from attention_forward's definitions.

Query heads come as `batch` (all leading axes and key-value heads) times `group` (query heads that share one key-value head:
grouped-query attention; 1: as many key-value heads as query heads); dK and dV are sums over the group. The form `weights`
reads the normalised weights that the forward pass stored, whatever its mask; the others recompute them from each row's
log-sum-exp, and read out. A row that sees nothing has gradient 0. Index variables: h over batch, g over the group, q over queries, k over keys, d and e
over features of keys and values.
"""

import attention_forward as forward
import numpy as np

from moapipe.algebra.adjoint import Adjoint, adjoint

SIZES = ("batch", "group", "q_len", "kv_len", "d_k", "d_v")
PARAMETERS = {"B": ("batch",), "G": ("group",), "n": ("q_len", "kv_len"), "d": ("d_k", "d_v")}
FORMS = {
    "full": {"causal": None, "weights": False},
    "causal": {"causal": "top_left", "weights": False},
    "causal_bottom_right": {"causal": "bottom_right", "weights": False},
    "weights": {"causal": None, "weights": True},
}
LEADING, GROUP = "batch", "group"


def definitions(form: str) -> Adjoint:
    """Q is ⟨batch group q_len d_k⟩, K ⟨batch kv_len d_k⟩, V ⟨batch kv_len d_v⟩, scale a scalar; saved are out ⟨batch group q_len d_v⟩
    and lse ⟨batch group q_len⟩, or weights_normalised ⟨batch group q_len kv_len⟩; dout has the shape of out, dX that of X."""
    weights = FORMS[form]["weights"]
    attention = forward.attend(SIZES, FORMS[form]["causal"], lse=True, group=("group",))
    return adjoint(attention, of=("out",), wrt=("Q", "K", "V"), laws=("divide_first",),
                   saved=("weights_normalised",) if weights else ("out", "lse"),
                   after=("share_by_lse",) if weights else ("corr", "share_by_lse"))


def defaults(sizes):
    """Scalars that a caller may leave out."""
    return forward.defaults(sizes)


def _per_group(x):
    """K and V with an axis of one group, so that they meet Q's."""
    return {**x, "K": x["K"][:, None], "V": x["V"][:, None]}


def _saved(x, form):
    """What the forward pass keeps for these Q, K, V."""
    causal, weights = FORMS[form]["causal"], FORMS[form]["weights"]
    y = _per_group(x)
    _, p, lse = forward.softmax(np, y, causal)
    return {**x, "weights_normalised": p} if weights else {**x, "out": p @ y["V"], "lse": lse}


def inputs(rng, sizes, form):
    b, g, q, k, d, e = (sizes[s] for s in SIZES)
    x = {"Q": rng.standard_normal((b, g, q, d)), "K": rng.standard_normal((b, k, d)), "V": rng.standard_normal((b, k, e)), **defaults(sizes)}
    return {**_saved(x, form), "dout": rng.standard_normal((b, g, q, e))}


def _stressed(x, form, top):
    """Q such that the largest logit is `top`, and what the forward pass keeps then."""
    scores = forward.scores(_per_group(x))
    return _saved({**x, "Q": x["Q"] * (top / max(abs(scores).max(initial=0), 1e-9))}, form)


STRESS = {f"logits of ±{top}": lambda x, form, top=top: _stressed(x, form, top) for top in (100, 700)}


def _shares(xp, y, form):
    """Normalised weights: as saved, or from the scores and the log-sum-exp; 0 in rows and at keys that are not seen."""
    if FORMS[form]["weights"]:
        return y["weights_normalised"]
    lse = y["lse"][..., None]
    s = xp.where(forward.seen(xp, y, FORMS[form]["causal"]) & (lse > -np.inf), forward.scores(y), -np.inf)
    return xp.exp(s - xp.where(lse == -np.inf, 0, lse))


def reference(xp, x, form):
    y = _per_group(x)
    p, dp = _shares(xp, y, form), x["dout"] @ y["V"].swapaxes(-1, -2)
    corr = (p * dp if FORMS[form]["weights"] else x["dout"] * x["out"]).sum(-1)
    ds = x["scale"] * p * (dp - corr[..., None])
    turned = ds.swapaxes(-1, -2)
    return {"dQ": ds @ y["K"], "dK": (turned @ x["Q"]).sum(1), "dV": (p.swapaxes(-1, -2) @ x["dout"]).sum(1)}


def baseline(torch, x, form):
    """PyTorch's backward alone, of its own forward pass, which ran before."""
    given = q, k, v = [x[n].detach().clone().requires_grad_() for n in "QKV"]
    with torch.enable_grad():
        k, v = (y[:, None].expand(-1, q.shape[1], -1, -1) for y in (k, v))
        out = forward.attention(torch, q, k, v, x, FORMS[form]["causal"])()
    return "scaled_dot_product_attention backward", lambda: dict(zip(("dQ", "dK", "dV"), torch.autograd.grad(out, given, x["dout"], retain_graph=True), strict=True))


def bound(eps, x, p, share, corr, corr_error):
    """docs/validation.md: from the shares p, their absolute error, corr's terms and corr's error, through the five products."""
    u, n, q, e = eps / 2, x["K"].shape[-2], x["Q"].shape[1] * x["Q"].shape[2], x["V"].shape[-1]
    least = u * tiny(eps)
    y = {k: abs(v) for k, v in _per_group(x).items()}
    terms = y["dout"] @ y["V"].swapaxes(-1, -2) + corr[..., None]
    ds = y["scale"] * (share * terms + p * (u * (e + 8) * terms + (e + n) * least + corr_error[..., None])) + (y["scale"] + 1) * least
    size = y["scale"] * p * terms
    return {"dQ": (ds + u * (n + 3) * size) @ y["K"] + n * least, "dK": ((ds + u * (q + 3) * size).swapaxes(-1, -2) @ y["Q"]).sum(1) + q * least,
            "dV": ((share + u * (q + 2) * p).swapaxes(-1, -2) @ y["dout"]).sum(1) + q * least}


def tiny(eps):
    """The smallest normal number of a format; smaller results may be 0."""
    return float(np.finfo(np.float32 if eps > 1e-10 else np.float64).tiny)


def error_bound(eps, x, out, form):
    """Each share errs by its exponent; stored weights are exact, and their corr is a fold over the keys."""
    y, u = _per_group(x), eps / 2
    p = _shares(np, y, form)
    if FORMS[form]["weights"]:
        corr = (p * (abs(x["dout"]) @ abs(y["V"]).swapaxes(-1, -2))).sum(-1)
        return bound(eps, x, p, 0 * p, corr, u * (p.shape[-1] + x["V"].shape[-1] + 2) * corr)
    lse = abs(np.where(x["lse"] == -np.inf, 0, x["lse"]))[..., None]
    size = np.where(p > 0, forward.scores({k: abs(v) for k, v in y.items()}), 0)
    share = u * ((x["K"].shape[-1] + 12) * size + 8 * lse + 8) * p + tiny(eps)
    return bound(eps, x, p, share, (abs(x["dout"]) * abs(x["out"])).sum(-1), np.zeros(p.shape[:-1]))


def useful_flops(sizes, form):
    """Five products over the pairs that are seen; four where the weights are read."""
    pairs = sizes["batch"] * sizes["group"] * forward.pairs(sizes, FORMS[form]["causal"])
    return 2 * pairs * ((2 if FORMS[form]["weights"] else 3) * sizes["d_k"] + 2 * sizes["d_v"])


def lower_bound(sizes, form, capacity):
    """Elements past a cache of `capacity` elements: every array once, or pairs·d²/M (Saha & Ye 2024, arXiv 2402.07443, M ≥ d²)."""
    b, g, q, k, d, e = (sizes[s] for s in SIZES)
    pairs = g * forward.pairs(sizes, FORMS[form]["causal"])
    saved = g * q * k if FORMS[form]["weights"] else g * q * (e + 1)
    return b * max(2 * g * q * d + 2 * k * (d + e) + g * q * e + saved, pairs * d * e / capacity)
