"""The kernels' definitions: their normal forms against MoA's own meaning and plain numpy, and the published numbers."""

from functools import cache
from itertools import cycle
from math import inf
from pathlib import Path

import numpy as np
import pytest

from moapipe.algebra.adjoint import denote
from moapipe.algebra.dnf import Dnf, infer_sizes, meaning
from moapipe.algebra.evaluation import meaning_definitions
from moapipe.algebra.expr import Definitions
from moapipe.algebra.index import evaluate
from moapipe.algebra.laws import LAWS
from moapipe.algebra.scalar import Op, Ref, Var
from moapipe.errors import AlgebraError
from moapipe.lab.kernel import load, names

ROOT = Path(__file__).resolve().parents[2]
MODULES = {name: load(name, ROOT).module for name in names(ROOT)}
FORMS = [(name, form) for name, module in MODULES.items() for form in module.FORMS]
WRITTEN = [(name, form) for name, form in FORMS if isinstance(MODULES[name].definitions(form), Definitions)]
ATTENTION = [form for name, form in FORMS if name == "attention_forward"]
EXTENTS = [(2, 5, 3, 4, 1), (1, 1, 1, 1, 1), (3, 2, 5, 1, 3), (2, 3, 0, 2, 2), (2, 0, 3, 2, 2), (0, 2, 2, 2, 2), (1, 3, 4, 0, 2)]


@cache
def normal_form(name: str, form: str) -> Dnf:
    return denote(name, MODULES[name].definitions(form))[0]


def random_inputs(d: Dnf, sizes: dict[str, int], dtype: type = np.float64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    return {name: np.asarray(rng.standard_normal(tuple(evaluate(e, sizes) for e in shape)), dtype) ** 2 + 0.125 for name, shape in d.inputs}


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize(("name", "form"), WRITTEN)
def test_normal_form_means_what_was_written(name: str, form: str, extents: tuple[int, ...]) -> None:
    module = MODULES[name]
    sizes = dict(zip(module.SIZES, cycle(extents), strict=False))
    d = normal_form(name, form)
    given = random_inputs(d, sizes)
    assert infer_sizes(d, given) == sizes
    written = meaning_definitions(module.definitions(form), given, sizes)
    for key, value in meaning(d, given, sizes).items():
        np.testing.assert_allclose(value, written[key], rtol=1e-12, atol=1e-13, err_msg=key)


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_meaning_keeps_the_dtype(name: str, form: str) -> None:
    d = normal_form(name, form)
    sizes = {s: 2 for s in d.sizes}
    for dtype in (np.float32, np.float64, np.longdouble):
        got = meaning(d, random_inputs(d, sizes, dtype), sizes)
        assert {v.dtype for v in got.values()} == {np.dtype(dtype)}


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_hashes_tell_forms_apart(name: str, form: str) -> None:
    others = [normal_form(n, f) for n, f in FORMS if (n, f) != (name, form)]
    assert normal_form(name, form) not in others


@pytest.mark.parametrize("form", MODULES["matmul"].FORMS)
def test_matmul(form: str) -> None:
    d = normal_form("matmul", form)
    x = random_inputs(d, {"m": 3, "n": 4, "k": 5})
    a, b = x["A"].T if form[0] == "t" else x["A"], x["B"].T if form[1] == "t" else x["B"]
    expected = x["alpha"] * (a @ b) + (x["beta"] * x["C0"] if form.endswith("_accumulate") else 0)
    np.testing.assert_allclose(meaning(d, x, {"m": 3, "n": 4, "k": 5})["C"], expected, rtol=1e-14)


def test_rmsnorm() -> None:
    d = normal_form("rmsnorm", "forward")
    x = random_inputs(d, {"rows": 3, "d": 5})
    got = meaning(d, x, {"rows": 3, "d": 5})
    rinv = 1 / np.sqrt((x["x"] ** 2).mean(1) + x["eps"])
    np.testing.assert_allclose(got["rinv"], rinv, rtol=1e-14)
    np.testing.assert_allclose(got["z"], x["gamma"] * x["x"] * rinv[:, None], rtol=1e-14)


def attention(x: dict[str, np.ndarray], form: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows one by one, by the textbook."""
    option = MODULES["attention_forward"].FORMS[form]
    batch, q_len, kv_len = x["Q"].shape[0], x["Q"].shape[1], x["K"].shape[1]
    out, lse = np.zeros((batch, q_len, x["V"].shape[2])), np.full((batch, q_len), -inf)
    offset = {None: kv_len, "top_left": 0, "bottom_right": kv_len - q_len}[option["causal"]]
    for h in range(batch):
        for q in range(q_len):
            keys = [k for k in range(kv_len) if k <= q + offset]
            if keys:
                s = x["scale"] * x["K"][h, keys] @ x["Q"][h, q]
                w = np.exp(s - s.max())
                out[h, q], lse[h, q] = w @ x["V"][h, keys] / w.sum(), s.max() + np.log(w.sum())
    return out, lse


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("form", ATTENTION)
def test_attention(form: str, extents: tuple[int, ...]) -> None:
    d = normal_form("attention_forward", form)
    sizes = dict(zip(d.sizes, extents, strict=True))
    x = random_inputs(d, sizes)
    out, lse = attention(x, form)
    after = LAWS["base2"].apply(d)
    for e in (d, after, LAWS["scale_into_query"].apply(after), LAWS["scale_into_query"].apply(d)):
        got = meaning(e, x, sizes)
        np.testing.assert_allclose(got["out"], out, rtol=1e-12, atol=1e-14)
        assert not form.endswith("_lse") or np.allclose(got["lse"], lse, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("form", ATTENTION)
def test_attention_after_its_laws(form: str) -> None:
    """The weights are exactly exp2(S − Z), and the inner loop multiplies once."""
    d = LAWS["scale_into_query"].apply(LAWS["base2"].apply(normal_form("attention_forward", form)))
    h, q, k, f = map(Var, "hqkd")
    seen = "masked" if "causal" in form else "scores"
    assert d.normal("weights").value == Op("exp2", (Op("-", (Ref(seen, (h, q, k)), Ref("safe", (h, q)))),))
    assert d.normal("scores").value.body == Op("*", (Ref("scaled", (h, q, f)), Ref("K", (h, k, f))))
    assert d.normal("scaled").axes == (("h", Var("batch")), ("q", Var("q_len")), ("d", Var("d_k")))
    if "causal" in form:
        condition = d.normal("masked").value.args[0]
        assert isinstance(condition, Op) and condition.name == "<=" and condition.args[0] == k


def test_rows_that_see_nothing_and_large_scores() -> None:
    d = normal_form("attention_forward", "causal_bottom_right_lse")
    sizes = {"batch": 1, "q_len": 5, "kv_len": 2, "d_k": 1, "d_v": 2}
    x = {"Q": np.full((1, 5, 1), 700.0), "K": np.array([[[1.0], [-1.0]]]), "V": np.array([[[1.0, 2.0], [3.0, 4.0]]]), "scale": np.asarray(1.0)}
    with np.errstate(all="raise"):
        got = meaning(d, x, sizes)
    assert (got["out"][0, :3] == 0).all() and (got["lse"][0, :3] == -inf).all()
    assert (got["out"][0, 3:] == [[1, 2], [1, 2]]).all() and (got["lse"][0, 3:] == 700).all()


# Mullin & Hains 2026, §5.2: Q, K and V are 3×4, d_k = 4.
PUBLISHED = {
    "Q": [[-.1984, .2698, .3414, -.0372], [.2547, -1.0674, .3460, -2.5242], [.6822, -.6265, .0252, .3978]],
    "K": [[-1.1567, .6885, -.1884, .4743], [.2246, 1.7564, .5235, -2.3014], [-1.5899, .3730, -.8257, -1.2069]],
    "V": [[1.0739, .4006, -.9671, .4870], [.5589, -.7209, -.7650, .2689], [.8237, .3763, .8320, .0014]],
}
WEIGHTS = [[.3202, .3834, .2964], [.0288, .7300, .2412], [.4270, .2844, .2887]]
OUT = [[.8023, -.0366, -.3563, .2595], [.6376, -.4240, -.3857, .2107], [.8552, .0747, -.3903, .2848]]


def test_the_published_example() -> None:
    """Within one unit of the last printed digit. (Out[0][3] computes to .25944; .2595 is printed.)"""
    x = {name: np.array([value]) for name, value in PUBLISHED.items()} | {"scale": np.asarray(0.5)}
    d = normal_form("attention_forward", "full")
    for e in (d, LAWS["scale_into_query"].apply(LAWS["base2"].apply(d))):
        got = meaning(e, x, infer_sizes(e, x))
        assert np.abs(got["out"][0] - OUT).max() < 1e-4
        assert np.abs(got["weights"][0] / got["total"][0][:, None] - WEIGHTS).max() < 1e-4


def test_inputs_that_do_not_fit_are_refused() -> None:
    d = normal_form("matmul", "nn")
    good = {"A": np.zeros((2, 3)), "B": np.zeros((3, 4)), "alpha": np.asarray(1.0)}
    with pytest.raises(AlgebraError, match="B has shape \\(4, 3\\), but k is 3 elsewhere"):
        infer_sizes(d, {**good, "B": np.zeros((4, 3))})
    with pytest.raises(AlgebraError, match="input alpha is missing"):
        infer_sizes(d, {"A": good["A"], "B": good["B"]})
    with pytest.raises(AlgebraError, match=r"A has shape \(2,\), and ⟨m k⟩ is needed"):
        infer_sizes(d, {**good, "A": np.zeros(2)})
    with pytest.raises(AlgebraError, match=r"A has shape \(2, 3\), and the sizes give \(2, 5\)"):
        meaning(d, good, {"m": 2, "n": 4, "k": 5})
