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
