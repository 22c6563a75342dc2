"""In: scalar expressions, MoA expressions, definitions, steps. Out: their text in MoA glyphs, ASCII, LaTeX or MathML.

How a function or an operator is written stands in its row (FUNCS, OPS); here is only the walk, and where brackets go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Literal, assert_never

from moapipe.algebra.expr import Apply, Cell, Definition, Definitions, Expr, Leaf, Value
from moapipe.algebra.function import CALL, FUNCS, MONOIDS, STYLES
from moapipe.algebra.ops import OPS
from moapipe.algebra.rewrite import Pending
from moapipe.algebra.scalar import Fold, Num, Op, Ref, Scalar, Var

Style = Literal["moa", "ascii", "latex", "mathml"]
Written = tuple[str, int]                          # text, and how tightly it binds
_INFINITY = {"moa": "∞", "ascii": "inf", "latex": r"\infty", "mathml": "<mi>∞</mi>"}
_MINUS = {"moa": "−", "ascii": "-", "latex": "-", "mathml": "<mo>−</mo>"}
_CELLS = {"moa": ("⍺", "⍵"), "ascii": ("alpha", "omega"), "latex": (r"\alpha", r"\omega"), "mathml": ("<mi>⍺</mi>", "<mi>⍵</mi>")}
_FOLD = {"moa": ("{f} red[{lo} ≤ {v} < {hi}] ({0})", 0), "ascii": ("{m}({lo} <= {v} < {hi}: {0})", CALL),
         "latex": (r"{x}_{{{lo} \le {v} < {hi}}} {r}", 5),
         "mathml": ("<mrow><munder>{s}<mrow>{lo}<mo>≤</mo>{v}<mo>&lt;</mo>{hi}</mrow></munder>{r}</mrow>", 5)}
_MATHML_FOLD = {"sum": "<mo>∑</mo>", "product": "<mo>∏</mo>", "max": "<mo>max</mo>", "min": "<mo>min</mo>"}


def _column(style: Style) -> int:
    return STYLES.index(style)


def _bracket(s: str, style: Style) -> str:
    match style:
        case "latex":
            return rf"\left({s}\right)"
        case "mathml":
            return f"<mrow><mo>(</mo>{s}<mo>)</mo></mrow>"
        case _:
            return f"({s})"


def _tight(w: Written, level: int, style: Style) -> str:
    return w[0] if w[1] >= level else _bracket(w[0], style)


def name_text(name: str, style: Style) -> str:
    """The name of an array, a size or an index variable."""
    match style:
        case "latex":
            if name.endswith("′"):                     # summed over, in a step of an adjoint
                return name_text(name[:-1], style) + "'"
            return name if len(name) == 1 else rf"\mathit{{{name}}}".replace("_", r"\_")
        case "mathml":
            return f"<mi>{name}</mi>"
        case _:
            return name


def _number(v: int | float, style: Style) -> Written:
    if v < 0:
        return _MINUS[style] + _number(-v, style)[0], 7
    if v == inf:
        return _INFINITY[style], CALL
    s = repr(v)
    return (f"<mn>{s}</mn>" if style == "mathml" else s), CALL


def vector_text(v: Sequence[Scalar], style: Style) -> str:
    """⟨i j k⟩; the empty vector is Θ."""
    parts = [_tight(_scalar(x, style, element), CALL, style) for x in v]
    match style:
        case "ascii":
            return f"<{' '.join(parts)}>"
        case "latex":
            return r"\langle " + r" \; ".join(parts) + r" \rangle" if parts else r"\Theta"
        case "mathml":
            return "<mrow><mo>⟨</mo>" + '<mspace width="0.3em"/>'.join(parts) + "<mo>⟩</mo></mrow>" if parts else "<mi>Θ</mi>"
        case _:
            return f"⟨{' '.join(parts)}⟩" if parts else "Θ"


Element = Callable[[Ref, Style], Written]


def element(r: Ref, style: Style) -> Written:
    """One element of a named array: ⟨i j⟩ψA, A[i, j], A with subscripts."""
    name = name_text(r.array, style)
    if not r.index:
        return name, CALL
    parts = [_scalar(x, style, element)[0] for x in r.index]
    match style:
        case "ascii":
            return f"{name}[{', '.join(parts)}]", CALL
        case "latex":
            return f"{name}_{{{','.join(parts)}}}", CALL
        case "mathml":
            return f"<msub>{name}<mrow>{'<mo>,</mo>'.join(parts)}</mrow></msub>", CALL
        case _:
            return f"{vector_text(r.index, style)}ψ{name}", CALL


def scalar_text(e: Scalar, style: Style = "ascii") -> str:
    """A scalar expression, for reading. (The canonical text, for hashes, is algebra.scalar.text.)"""
    return _scalar(e, style, element)[0]


def _scalar(e: Scalar, style: Style, ref: Element) -> Written:
    match e:
        case Num(v):
            return _number(v, style)
        case Var(name):
            return name_text(name, style), CALL
        case Ref():
            return ref(e, style)
        case Fold():
            return _fold(e, style, ref)
        case Op(name, args):
            return _function(name, [_scalar(a, style, ref) for a in args], style)
        case _:
            assert_never(e)


def _fold(e: Fold, style: Style, ref: Element) -> Written:
    monoid = MONOIDS[e.monoid]
    template, level = _FOLD[style]
    body = _scalar(e.body, style, ref)
    return template.format(body[0], f=FUNCS[monoid.function].symbol[0], m=e.monoid, x=monoid.latex, s=_MATHML_FOLD[e.monoid],
                           v=name_text(e.var, style), lo=_scalar(e.lo, style, ref)[0], hi=_scalar(e.hi, style, ref)[0],
                           r=_tight(body, 6, style)), level


def _function(name: str, args: list[Written], style: Style) -> Written:
    row = FUNCS[name]
    template = row.template[_column(style)]
    level = CALL if template.startswith((r"\frac", "<mfrac", "min", "max")) else row.level
    left, right = args[0], args[-1]
    text = template.format(*(a[0] for a in args), l=_tight(left, level, style), r=_tight(right, level + (row.arity == 2), style))
    return text, level


# ------------------------------------------------------------------ MoA expressions


def expr_text(e: Expr, style: Style = "moa") -> str:
    """A MoA expression in its operators."""
    return _expr(e, style)[0]


def _expr(e: Expr, style: Style) -> Written:
    match e:
        case Leaf(name, _):
            return name_text(name, style), CALL
        case Value(value):
            return _scalar(value, style, element)
        case Cell(side, depth, _):
            return _CELLS[style][side] + ("'" * depth if style != "mathml" else f"<mo>{'′' * depth}</mo>" * (depth > 0)), CALL
        case Apply("pointwise"):
            return _function(e.data.functions[0], [_expr(a, style) for a in e.args], style)
        case Apply():
            return _operator(e, style), 0
        case _:
            assert_never(e)


def _operator(e: Apply, style: Style) -> str:
    c = _column(style)
    symbols = [FUNCS[MONOIDS[f].function if f in MONOIDS else f].symbol[c] for f in e.data.functions]
    args = [_tight(_expr(a, style), CALL, style) for a in e.args]
    length = e.operator == "iota"   # ι n counts to a scalar n; of a vector ⟨n⟩ it would be the odometer, an array of shape ⟨n 1⟩
    vector = _tight(_scalar(e.data.vector[0], style, element), CALL, style) if length else vector_text(e.data.vector, style)
    fields = {"v": vector, "f": symbols[0] if symbols else "", "g": symbols[-1] if symbols else "",
              "l": args[0] if len(args) == 2 else "", "r": args[-1] if args else "", "b": "" if e.body is None else _body(e.body, style)}
    return OPS[e.operator].template[c].format(**fields).lstrip()


def _body(e: Expr, style: Style) -> str:
    inside = expr_text(e, style)
    match style:
        case "latex":
            return rf"\,\{{{inside}\}}"
        case "mathml":
            return f"<mrow><mo>{{</mo>{inside}<mo>}}</mo></mrow>"
        case _:
            return f"{{{inside}}}"


def pending_text(p: Pending, style: Style = "moa") -> str:
    """A half-reduced scalar: what is still to be reduced stands as index ψ expression."""

    def ref(r: Ref, style: Style) -> Written:
        part = _expr(p.parts[int(r.array)], style)
        if isinstance(p.parts[int(r.array)], Leaf):
            return element(Ref(p.parts[int(r.array)].name, r.index), style)  # type: ignore[union-attr]
        if not r.index:
            return part
        fields = {"v": vector_text(r.index, style), "r": _tight(part, CALL, style)}
        return OPS["psi"].template[_column(style)].format(**fields), 4

    return _scalar(p.value, style, ref)[0]


# ------------------------------------------------------------------ definitions


def heading(name: str, sizes: Sequence[str], inputs: Sequence[tuple[str, Sequence[Scalar]]], outputs: Sequence[str], style: Style) -> str:
    """name(sizes): inputs with their shapes → outputs."""
    shapes = [f"{name_text(a, style)} {vector_text(s, style)}" if s else name_text(a, style) for a, s in inputs]
    comma = "<mo>,</mo>" if style == "mathml" else ", "
    given, made = comma.join(shapes), comma.join(name_text(o, style) for o in outputs)
    arguments = comma.join(name_text(s, style) for s in sizes)
    match style:
        case "latex":
            return rf"\mathrm{{{name}}}({arguments}):\; {given} \to {made}".replace("_", r"\_").replace(r"\\_", r"\_")
        case "mathml":
            return f"<mrow><mi>{name}</mi><mo>(</mo>{arguments}<mo>)</mo><mo>:</mo>{given}<mo>→</mo>{made}</mrow>"
        case "ascii":
            return f"{name}({arguments}): {given} -> {made}"
        case _:
            return f"{name}({arguments}): {given} → {made}"


def definition_text(name: str, axes: Sequence[tuple[str, Scalar]], value: Scalar, style: Style) -> str:
    """One definition of a normal form, with the extents of its axes."""
    left = element(Ref(name, tuple(Var(v) for v, _ in axes)), style)[0]
    right = scalar_text(value, style)
    bounds = [(name_text(v, style), scalar_text(e, style)) for v, e in axes]
    match style:
        case "latex":
            tail = "".join(rf",\; 0 \le {v} < {e}" for v, e in bounds)
            return f"{left} = {right}" + (rf" \quad {tail[4:]}" if tail else "")
        case "mathml":
            tail = "<mo>,</mo>".join(f"<mrow><mn>0</mn><mo>≤</mo>{v}<mo>&lt;</mo>{e}</mrow>" for v, e in bounds)
            return f"<mrow>{left}<mo>=</mo>{right}" + ('<mspace width="2em"/>' + tail if tail else "") + "</mrow>"
        case "ascii":
            tail = ", ".join(f"0 <= {v} < {e}" for v, e in bounds)
            return f"{left} = {right}" + (f"    {tail}" if tail else "")
        case _:
            index, shape = " ".join(v for v, _ in bounds), vector_text([e for _, e in axes], style)
            return f"{left} ≡ {right}" + (f"    0 ≤* ⟨{index}⟩ <* {shape}" if bounds else "")


def show_definitions(name: str, d: Definitions, style: Style = "moa") -> str:
    """A kernel as it was written: one definition a line, name⟨shape⟩ ≡ expression."""
    lines = [heading(name, d.sizes, [(x.name, x.shape) for x in d.inputs], d.outputs, style)]
    return "\n".join([*lines, *(_written(x, style) for x in d.definitions)]) + "\n"


def _written(x: Definition, style: Style) -> str:
    left, right = name_text(x.name, style), expr_text(x.expr, style)
    match style:
        case "mathml":
            return f"<mrow>{left}<mo>≡</mo>{right}</mrow>"
        case "latex":
            return rf"{left} \equiv {right}"
        case "ascii":
            return f"{left} = {right}"
        case _:
            return f"{left} ≡ {right}"
