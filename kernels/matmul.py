"""C = alpha·op(A)·op(B) + beta·C0, op the identity or the transpose; without `accumulate` neither beta nor C0 is there.

Sizes as in the BLAS: C is m×n and the fold has k terms. Index variables: i over m, j over n, p over k.
"""

from moapipe.algebra import expr as moa
from moapipe.algebra.expr import Definition, Definitions

SIZES = ("m", "n", "k")
PARAMETERS = {"m": ("m",), "n": ("n",), "k": ("k",)}
FORMS = {
    f"{a}{b}{suffix}": {"transpose_a": a == "t", "transpose_b": b == "t", "accumulate": bool(suffix)}
    for suffix in ("", "_accumulate") for a in "nt" for b in "nt"
}


def definitions(form: str) -> Definitions:
    """The forms nn nt tn tt say which of A and B is stored transposed: A is m×k or k×m, B is k×n or n×k."""
    option = FORMS[form]
    a = moa.array("A", "k", "m") if option["transpose_a"] else moa.array("A", "m", "k")
    b = moa.array("B", "n", "k") if option["transpose_b"] else moa.array("B", "k", "n")
    alpha, beta, c0 = moa.scalar_array("alpha"), moa.scalar_array("beta"), moa.array("C0", "m", "n")
    left = moa.transpose(a) if option["transpose_a"] else a
    right = moa.transpose(b) if option["transpose_b"] else b
    product = Definition("product", ("i", "j"), moa.inner("+", "*", left, right, index="p"))
    c = alpha * product.array
    if option["accumulate"]:
        c = c + beta * c0
    inputs = (a, b, alpha, beta, c0) if option["accumulate"] else (a, b, alpha)
    return Definitions(SIZES, inputs, (product, Definition("C", ("i", "j"), c)), ("C",))


def defaults(sizes):
    """Scalars that a caller may leave out."""
    return {"alpha": 1.0, "beta": 0.0}


def inputs(rng, sizes, form):
    """Normal matrices, so that C is of the size of √k; alpha and beta are no powers of two."""
    shapes = {a.name: [sizes[s.name] for s in a.shape] for a in definitions(form).inputs}
    return {name: rng.standard_normal(shape) if shape else rng.uniform(0.3, 0.9) for name, shape in shapes.items()}


def _operands(x, form):
    option = FORMS[form]
    return x["A"].T if option["transpose_a"] else x["A"], x["B"].T if option["transpose_b"] else x["B"]


def reference(xp, x, form):
    a, b = _operands(x, form)
    c = x["alpha"] * (a @ b)
    return {"C": c + x["beta"] * x["C0"] if FORMS[form]["accumulate"] else c}


def baseline(torch, x, form):
    """One call of the BLAS, which reads C0 only where beta is not 0."""
    a, b = _operands(x, form)
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    c0, beta = (x["C0"], float(x["beta"])) if FORMS[form]["accumulate"] else (out, 0.0)
    return "addmm", lambda: {"C": torch.addmm(c0, a, b, beta=beta, alpha=float(x["alpha"]), out=out)}


def error_bound(eps, x, out, form):
    a, b = _operands({name: abs(v) for name, v in x.items()}, form)
    added = abs(x["beta"] * x["C0"]) if FORMS[form]["accumulate"] else 0
    return {"C": eps / 2 * ((a.shape[1] + 3) * abs(x["alpha"]) * (a @ b) + 3 * added)}


def useful_flops(sizes, form):
    return 2 * sizes["m"] * sizes["n"] * sizes["k"]


def lower_bound(sizes, form, capacity):
    """Elements past a cache of `capacity` elements: every array once, or 2mnk/√M − 2M (Smith et al. 2017, arXiv 1702.02017)."""
    m, n, k = (sizes[s] for s in SIZES)
    once = m * k + k * n + m * n * (2 if FORMS[form]["accumulate"] else 1)
    return max(once, 2 * m * n * k / capacity**0.5 - 2 * capacity)
