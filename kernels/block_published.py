"""A transformer block as published, forward: pre-norm, one head, no output projection, no mask, no rotation.

Z1 = norm(X); Q, K, V = Z1·Wq, Z1·Wk, Z1·Wv; R = X + attention(Q, K, V); Z2 = norm(R); Y = R + gated MLP(Z2). Index variables: b over
sequences, q and k over positions, c, j and e over the d features, f over the d_ff features of the MLP, o over those of the result.
"""

import attention_forward as attention
import gated_mlp as mlp
import numpy as np

from moapipe.algebra import expr as moa
from moapipe.algebra.expr import Definition, Definitions, Expr

SIZES = ("batch", "seq", "d", "d_ff")
PARAMETERS = {"B": ("batch",), "n": ("seq",), "d": ("d",), "ff": ("d_ff",)}
FORMS: dict[str, dict[str, object]] = {"forward": {}}
WEIGHTS = {"Wq": ("d", "d"), "Wk": ("d", "d"), "Wv": ("d", "d"), "Wg": ("d", "d_ff"), "Wu": ("d", "d_ff"), "Wd": ("d_ff", "d")}


def normalise(k: str, x: Expr, gamma: Expr, eps: Expr) -> list[Definition]:
    """rmsnorm of rows ⟨batch seq d⟩: squares, rinv and Z, each with the suffix k."""
    squares = Definition(f"squares{k}", ("b", "q"), moa.omega(lambda row: moa.reduce("+", row * row, index="c"), 1, x))
    rinv = Definition(f"rinv{k}", ("b", "q"), moa.reciprocal(moa.sqrt(squares.array / moa.size("d") + eps)))
    scaled = moa.omega(lambda row, r: row * r, (1, 0), x, rinv.array)
    return [squares, rinv, Definition(f"Z{k}", ("b", "q", "c"), moa.omega(lambda g, row: g * row, (1, 1), gamma, scaled))]


def product(name: str, axes: tuple[str, ...], x: Expr, w: Expr, index: str) -> Definition:
    """x·w for every sequence of x ⟨batch seq …⟩."""
    return Definition(name, axes, moa.omega(lambda a, b: moa.inner("+", "*", a, b, index=index), (2, 2), x, w))


def feed(x: Expr, Wg: Expr, Wu: Expr, Wd: Expr) -> list[Definition]:
    """The gated MLP of rows ⟨batch seq d⟩: U, G (the other half, V being the values), H, F."""
    U, G = product("U", ("b", "q", "f"), x, Wg, "c"), product("G", ("b", "q", "f"), x, Wu, "c")
    H = Definition("H", ("b", "q", "f"), U.array * moa.sigmoid(U.array) * G.array)
    return [U, G, H, product("F", ("b", "q", "o"), H.array, Wd, "f")]


def definitions(form: str) -> Definitions:
    """X and Y are ⟨batch seq d⟩, gamma1 and gamma2 have d elements, Wq, Wk, Wv are ⟨d d⟩, Wg and Wu ⟨d d_ff⟩, Wd ⟨d_ff d⟩, eps and
    scale scalars."""
    X, gamma1, gamma2 = moa.array("X", "batch", "seq", "d"), moa.array("gamma1", "d"), moa.array("gamma2", "d")
    eps, scale, W = moa.scalar_array("eps"), moa.scalar_array("scale"), {name: moa.array(name, *shape) for name, shape in WEIGHTS.items()}
    steps = normalise("1", X, gamma1, eps)
    Z = steps[-1].array
    steps += [product("Q", ("b", "q", "j"), Z, W["Wq"], "c"), product("K", ("b", "k", "j"), Z, W["Wk"], "c"), product("V", ("b", "k", "e"), Z, W["Wv"], "c")]
    Q, K, V = (s.array for s in steps[-3:])
    scores = Definition("scores", ("b", "q", "k"), scale * moa.omega(lambda q, k: moa.inner("+", "*", q, moa.transpose(k), index="j"), (2, 2), Q, K))
    steps += [scores, *attention.mix(("b", "q"), scores.array, V, (2, 2))]
    R = Definition("R", ("b", "q", "c"), X + steps[-1].array)
    steps += [R, *normalise("2", R.array, gamma2, eps)]
    steps += feed(steps[-1].array, W["Wg"], W["Wu"], W["Wd"])
    steps += [Definition("Y", ("b", "q", "o"), R.array + steps[-1].array)]
    return Definitions(SIZES, (X, gamma1, gamma2, *W.values(), eps, scale), tuple(steps), ("Y",))


def defaults(sizes):
    """Scalars that a caller may leave out."""
    return {"eps": 1e-6, "scale": max(sizes["d"], 1) ** -0.5}


def inputs(rng, sizes, form):
    """Normal rows; weights such that every array between is of the size of X."""
    weights = {k: rng.standard_normal([sizes[s] for s in shape]) * max(sizes[shape[0]], 1) ** -0.5 for k, shape in WEIGHTS.items()}
    gammas = {g: rng.uniform(0.5, 1.5, sizes["d"]) for g in ("gamma1", "gamma2")}
    return {"X": rng.standard_normal((sizes["batch"], sizes["seq"], sizes["d"])), **gammas, **weights, **defaults(sizes)}


STRESS = {
    "rows of zeros": lambda x, form: {**x, "X": 0 * x["X"]},
    "gates of ±100": lambda x, form: {**x, "Wg": 40 * x["Wg"]},
}


def normed(xp, y, gamma, eps):
    return gamma * y / xp.sqrt((y**2).sum(-1, keepdims=True) / max(y.shape[-1], 1) + eps)


def fed(xp, R, x):
    """Z2, U, G, H and Y from R."""
    Z2 = normed(xp, R, x["gamma2"], x["eps"])
    U, G = Z2 @ x["Wg"], Z2 @ x["Wu"]
    H = mlp.silu(xp, U) * G
    return {"Z2": Z2, "U": U, "G": G, "H": H, "Y": R + H @ x["Wd"]}


def stages(xp, x):
    """Z1, Q, K, V, attention's shares, R and what follows from it."""
    Z1 = normed(xp, x["X"], x["gamma1"], x["eps"])
    Q, K, V = (Z1 @ x[w] for w in ("Wq", "Wk", "Wv"))
    p = attention.shares(xp, attention.scores({"Q": Q, "K": K, "scale": x["scale"]}))[0]
    R = x["X"] + p @ V
    return {"Z1": Z1, "Q": Q, "K": K, "V": V, "p": p, "R": R, **fed(xp, R, x)}


def reference(xp, x, form):
    return {"Y": stages(xp, x)["Y"]}


def baseline(torch, x, form):
    """PyTorch eager: its norm, products, attention and silu."""
    F, eps, scale = torch.nn.functional, float(x["eps"]), float(x["scale"])

    def run():
        Z = F.rms_norm(x["X"], x["gamma1"].shape, x["gamma1"], eps)
        R = x["X"] + F.scaled_dot_product_attention(Z @ x["Wq"], Z @ x["Wk"], Z @ x["Wv"], scale=scale)
        Z = F.rms_norm(R, x["gamma2"].shape, x["gamma2"], eps)
        return {"Y": R + (F.silu(Z @ x["Wg"]) * (Z @ x["Wu"])) @ x["Wd"]}

    return "rms_norm, mm, scaled_dot_product_attention, silu", run


def normed_error(u, x, gamma, eps, dx):
    """Z's error from x's: its own roundings, and what x's error does to the row's scale and to the element."""
    d = max(x.shape[-1], 1)
    r = 1 / np.sqrt((x**2).sum(-1, keepdims=True) / d + eps)
    moved = r**2 * (abs(x) * dx + dx**2).sum(-1, keepdims=True) / d
    return abs(gamma) * r * (dx + (abs(x) + dx) * (moved + u * (d / 2 + 7)))


def product_error(u, a, da, w):
    """a·w's error from a's."""
    return da @ abs(w) + u * (w.shape[0] + 1) * (abs(a) + da) @ abs(w)


def error_bound(eps, x, out, form):
    """docs/validation.md: stage after stage, each with its own roundings and with what it makes of its inputs' errors."""
    u, y = eps / 2, stages(np, x)
    dZ = normed_error(u, x["X"], x["gamma1"], x["eps"], 0 * x["X"])
    dQ, dK, dV = (product_error(u, y["Z1"], dZ, x[w]) for w in ("Wq", "Wk", "Wv"))
    shifts = x["scale"] * (dQ @ abs(y["K"]).swapaxes(-1, -2) + (abs(y["Q"]) + dQ) @ dK.swapaxes(-1, -2))
    p, relative, _ = attention.relative_error(eps, {"Q": y["Q"], "K": y["K"], "scale": x["scale"]}, None)
    w = np.expm1(np.minimum(2 * shifts.max(-1, initial=0) + 2 * relative, 50))[..., None]
    dR = (1 + w) * (p @ dV) + w * (p @ abs(y["V"])) + u * abs(y["R"])
    return {"Y": fed_error(eps, x, y, dR)}


def fed_error(eps, x, y, dR):
    """Y's error from R's."""
    u = eps / 2
    dZ = normed_error(u, y["R"], x["gamma2"], x["eps"], dR)
    dU, dG = (product_error(u, y["Z2"], dZ, x[w]) for w in ("Wg", "Wu"))
    act = abs(mlp.silu(np, y["U"]))
    da = 1.1 * dU + 9 * u * act + 2.0 ** (-126 if eps > 1e-10 else -1022) * (1 + abs(y["U"]))
    dH = da * (abs(y["G"]) + dG) + act * dG + 2 * u * abs(y["H"])
    return dR + product_error(u, y["H"], dH, x["Wd"]) + u * abs(y["Y"])


def useful_flops(sizes, form):
    b, n, d, f = (sizes[s] for s in SIZES)
    return b * n * (6 * d * d + 4 * n * d + 6 * d * f)


def lower_bound(sizes, form, capacity):
    """Elements past a cache of `capacity` elements: X, Y and the weights once, or the products' 2mnk/√M − 2M (Smith et al. 2017)."""
    b, n, d, f = (sizes[s] for s in SIZES)
    return max(2 * b * n * d + 3 * d * d + 3 * d * f + 2 * d, b * n * (6 * d * d + 6 * d * f) / capacity**0.5 - 12 * capacity)
