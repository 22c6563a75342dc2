"""RMSNorm forward: z[t,c] = gamma[c]·x[t,c]·rinv[t], rinv[t] = 1/√(mean_c x[t,c]² + eps). Saves rinv for the backward pass.

Zhang & Sennrich 2019, with eps inside the root. Index variables: t over rows, c over the d features.
"""

from moapipe.algebra import expr as moa
from moapipe.algebra.expr import Definition, Definitions

SIZES = ("rows", "d")
PARAMETERS = {"n": ("rows",), "d": ("d",)}
FORMS: dict[str, dict[str, object]] = {"forward": {}}


def definitions(form: str) -> Definitions:
    """x is rows×d, gamma has d elements, eps is a scalar; outputs z (rows×d) and rinv (rows)."""
    x, gamma, eps = moa.array("x", "rows", "d"), moa.array("gamma", "d"), moa.scalar_array("eps")
    squares = Definition("squares", ("t",), moa.omega(lambda row: moa.reduce("+", row * row, index="c"), 1, x))
    rinv = Definition("rinv", ("t",), moa.reciprocal(moa.sqrt(squares.array / moa.size("d") + eps)))
    scaled = moa.omega(lambda row, r: row * r, (1, 0), x, rinv.array)
    z = Definition("z", ("t", "c"), moa.omega(lambda g, row: g * row, (1, 1), gamma, scaled))
    return Definitions(SIZES, (x, gamma, eps), (squares, rinv, z), ("z", "rinv"))
