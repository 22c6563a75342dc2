"""Derived gradients of whole kernels: their normal forms' meaning against PyTorch's autograd of the same mathematics, in float64."""

from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch

from moapipe.algebra.adjoint import Adjoint, adjoint, denote
from moapipe.algebra.dnf import meaning, show
from moapipe.algebra.expr import constraints
from moapipe.algebra.index import evaluate
from moapipe.algebra.laws import LAWS
from moapipe.algebra.render import pending_text
from moapipe.algebra.scalar import Op, text
from moapipe.lab.derive import denotation
from moapipe.lab.kernel import load, names, scan

ROOT = Path(__file__).resolve().parents[2]
EXTENTS = [(2, 1, 5, 3, 4, 2), (1, 3, 4, 6, 2, 3), (1, 1, 1, 1, 1, 1), (2, 2, 7, 3, 1, 1), (1, 2, 3, 0, 2, 2), (1, 1, 0, 3, 2, 2), (0, 2, 2, 2, 2, 2), (1, 2, 3, 4, 0, 2), (1, 0, 3, 4, 2, 2)]


def attend(q, k, v, scale, causal):
    """softmax(scale·QKᵀ, masked)·V by PyTorch's elementary functions; a row that sees nothing has output 0 and passes nothing."""
    n, m = q.shape[-2], k.shape[-2]
    offset = {None: m, "top_left": 0, "bottom_right": m - n}[causal]
    seen = torch.arange(m)[None, :] <= torch.arange(n)[:, None] + offset
    s = torch.where(seen, scale * q @ k[:, None].transpose(-1, -2), -inf)
    rows = seen.any(-1)
    p = torch.where(rows[:, None], torch.softmax(torch.where(rows[:, None], s, 0.0), -1), 0.0)
    lse = torch.where(rows, torch.logsumexp(torch.where(rows[:, None], s, 0.0), -1) if m else torch.zeros(s.shape[:-1]), -inf)
    return p @ v[:, None], p, lse


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("form", scan("attention_backward", ROOT).forms)
def test_attention_backward_is_autograd(form: str, extents: tuple[int, ...]) -> None:
    file = load("attention_backward", ROOT)
    sizes = dict(zip(file.sizes, extents, strict=True))
    given = {k: np.asarray(v) for k, v in file.call("inputs", np.random.default_rng(5), sizes, form).items()}
    leaves = [torch.tensor(given[n], requires_grad=True) for n in "QKV"]
    out, p, lse = attend(*leaves, float(given["scale"]), file.forms[form]["causal"])
    for name, theirs in (("out", out), ("weights_normalised", p), ("lse", lse)):
        if name in given:
            np.testing.assert_allclose(given[name], theirs.detach().numpy(), rtol=1e-12, atol=1e-13, err_msg=name)
    out.backward(torch.tensor(given["dout"]))
    found = meaning(denotation("attention_backward", form, ROOT).dnf, given, sizes)
    oracle = file.call("reference", np, given, form)
    for name, leaf in zip("QKV", leaves, strict=True):
        want = np.zeros_like(given[name]) if leaf.grad is None else leaf.grad.numpy()
        np.testing.assert_allclose(found[f"d{name}"], want, rtol=1e-10, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(oracle[f"d{name}"], want, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("extents", [e for e in EXTENTS if e[1]], ids=str)
@pytest.mark.parametrize("form", scan("attention_forward_backward", ROOT).forms)
def test_attention_forward_backward_is_autograd(form: str, extents: tuple[int, ...]) -> None:
    file = load("attention_forward_backward", ROOT)
    sizes = dict(zip(file.sizes, (extents[0], *extents[2:]), strict=True))
    given = {k: np.asarray(v) for k, v in file.call("inputs", np.random.default_rng(5), sizes, form).items()}
    leaves = [torch.tensor(given[n], requires_grad=True) for n in "QKV"]
    out = attend(leaves[0][:, None], *leaves[1:], float(given["scale"]), file.forms[form]["causal"])[0][:, 0]
    out.backward(torch.tensor(given["dout"]))
    found = meaning(denotation("attention_forward_backward", form, ROOT).dnf, given, sizes)
    oracle = file.call("reference", np, given, form)
    want = {"out": out.detach().numpy(), **{f"d{n}": np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy() for n, leaf in zip("QKV", leaves, strict=True)}}
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(oracle[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("extents", [(2, 5, 3, 4, 2), (1, 4, 6, 2, 3), (1, 3, 0, 2, 2)], ids=str)
@pytest.mark.parametrize("form", ["full_lse", "causal_lse", "causal_bottom_right_lse"])
def test_the_log_sum_exp_has_a_gradient_too(form: str, extents: tuple[int, ...]) -> None:
    """Of out and lse together; a row that sees nothing has a log-sum-exp of −∞ and passes nothing, never 0·∞."""
    file = load("attention_forward", ROOT)
    sizes = dict(zip(file.sizes, extents, strict=True))
    back, _ = denote("both", adjoint(file.call("definitions", form), ("out", "lse"), ("Q", "K", "V"), laws=("divide_first",)))
    rng = np.random.default_rng(3)
    given = {k: np.asarray(v) for k, v in file.call("inputs", rng, sizes, form).items()}
    leaves = [torch.tensor(given[n], requires_grad=True) for n in "QKV"]
    out, _, lse = (y[:, 0] for y in attend(leaves[0][:, None], *leaves[1:], float(given["scale"]), file.forms[form]["causal"]))
    given |= {"dout": rng.standard_normal(out.shape), "dlse": rng.standard_normal(lse.shape)}
    loss = (out * torch.tensor(given["dout"])).sum() + torch.where(lse > -inf, lse * torch.tensor(given["dlse"]), 0.0).sum()
    if loss.requires_grad:
        loss.backward()
    found = meaning(back, {n: given[n] for n, _ in back.inputs}, sizes)
    for name, leaf in zip("QKV", leaves, strict=True):
        want = np.zeros_like(given[name]) if leaf.grad is None else leaf.grad.numpy()
        np.testing.assert_allclose(found[f"d{name}"], want, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("name", "laws"), [
    ("attention_forward_backward", ("divide_last",)), ("attention_forward_backward", ("divide_last", "share_by_lse")),
    ("attention_forward_backward", ("divide_last", "share_by_lse", "shift_empty", "base2", "scale_into_query")),
    ("attention_forward_backward", ("share_by_lse", "base2")), ("attention_forward_backward", ("base2", "scale_into_query")),
    ("attention_backward", ("shift_empty", "base2", "scale_into_query")), ("attention_backward", ("base2",)),
])
@pytest.mark.parametrize("form", ["full", "causal_bottom_right"])
def test_laws_keep_the_gradients(name: str, laws: tuple[str, ...], form: str) -> None:
    start = denotation(name, form, ROOT).dnf
    after = start
    for law in laws:
        after = LAWS[law].apply(after)
    file = load(name, ROOT)
    for extents in ((2, 2, 5, 3, 4, 2), (1, 1, 3, 6, 2, 3)):
        sizes = dict(zip(file.sizes, extents if len(file.sizes) == 6 else (extents[0], *extents[2:]), strict=True))
        given = {k: np.asarray(v) for k, v in file.call("inputs", np.random.default_rng(5), sizes, form).items()}
        old, new = meaning(start, given, sizes), meaning(after, given, sizes)
        for o in start.outputs:
            np.testing.assert_allclose(new[o], old[o], rtol=1e-12, atol=1e-13, err_msg=o)


def test_rows_that_see_nothing_have_gradient_zero() -> None:
    file = load("attention_backward", ROOT)
    sizes = dict(zip(file.sizes, (1, 2, 5, 2, 3, 3), strict=True))
    given = {k: np.asarray(v) for k, v in file.call("inputs", np.random.default_rng(6), sizes, "causal_bottom_right").items()}
    assert np.all(given["lse"][..., :3] == -inf)
    found = meaning(denotation("attention_backward", "causal_bottom_right", ROOT).dnf, given, sizes)
    assert np.all(found["dQ"][..., :3, :] == 0) and np.any(found["dQ"][..., 3:, :])
    assert all(np.all(np.isfinite(found[n])) for n in ("dQ", "dK", "dV"))


DERIVED = [(name, form) for name in names(ROOT) for form in scan(name, ROOT).forms if isinstance(load(name, ROOT).call("definitions", form), Adjoint)]


def fitting(file, d: Adjoint) -> dict[str, int]:
    """Small sizes that the kernel's arrays agree with."""
    options = (dict(zip(file.sizes, (n, n, 3, 4, *[2 * n] * len(file.sizes)), strict=False)) for n in (2, 3, 4, 1))
    return next(s for s in options if all(evaluate(Op(c.relation, (c.left, c.right)), s) for c in constraints(d.primal)))


@pytest.mark.parametrize(("name", "form"), DERIVED)
def test_every_backward_kernel_is_pytorchs(name: str, form: str) -> None:
    """The kernel file's baseline, which is PyTorch's autograd, in float64; the formula that validation compares with, too."""
    file = load(name, ROOT)
    sizes = fitting(file, file.call("definitions", form))
    given = {k: np.asarray(v) for k, v in file.call("inputs", np.random.default_rng(9), sizes, form).items()}
    made, oracle = meaning(denotation(name, form, ROOT).dnf, given, sizes), file.call("reference", np, given, form)
    _, run = file.call("baseline", torch, {k: torch.tensor(v) for k, v in given.items()}, form)
    want = run()
    assert set(want) == set(oracle) and any(output.startswith("d") for output in want)
    for output, value in want.items():
        np.testing.assert_allclose(made[output], value.numpy(), rtol=1e-9, atol=1e-11, err_msg=output)
        np.testing.assert_allclose(oracle[output], value.numpy(), rtol=1e-9, atol=1e-11, err_msg=output)


@pytest.mark.parametrize(("name", "form"), DERIVED)
def test_every_backward_kernel_is_the_gradient_of_its_definitions(name: str, form: str) -> None:
    """Central differences of the forward definitions, in extended precision, along random directions of each array."""
    file, d = load(name, ROOT), load(name, ROOT).call("definitions", form)
    sizes = fitting(file, d)
    rng = np.random.default_rng(8)
    x = {k: np.asarray(v, np.longdouble) for k, v in file.call("inputs", rng, sizes, form).items()}
    front, back = denote(name, d.primal)[0], denotation(name, form, ROOT).dnf
    usual = file.module.forward.defaults(sizes) if any(n not in x for n, _ in front.inputs) else {}    # what only the saved arrays need
    zeros = {n: np.zeros([evaluate(e, sizes) for e in shape]) for n, shape in front.inputs}
    given = {n: np.asarray(x.get(n, usual.get(n, zeros[n])), np.longdouble) for n, _ in front.inputs}
    made, step = meaning(back, x, sizes), np.longdouble("1e-6")
    for w in d.wrt:
        v = rng.standard_normal(given[w].shape)
        up, down = (meaning(front, {**given, w: given[w] + h * v}, sizes) for h in (step, -step))
        expected = sum((x[f"d{o}"] * (up[o] - down[o]) / (2 * step)).sum() for o in d.of)
        assert float((made[f"d{w}"] * v).sum()) == pytest.approx(float(expected), rel=1e-8, abs=1e-9), w


@pytest.mark.parametrize("form", ["full", "causal"])
def test_the_derivation_says_how(form: str) -> None:
    """The textbook's backward pass comes out; the maximum drops out step by step, and nothing of its adjoint is left."""
    found = denotation("attention_backward", form, ROOT)
    laws = {(s.definition, s.law) for s in found.steps}
    assert {("dK", "affine inverse"), ("dsafe", "unfold"), ("dsafe", "definition"), ("dsafe", "invariance"), ("corr", "corr"),
            ("weights_normalised", "share_by_lse"), ("lse", "saved"), ("out", "saved")} <= laws
    assert (("dscores", "masked") in laws) == (form == "causal")
    assert not {"dsafe", "dpeak", "dtotal", "safe", "peak", "total"} & {n.name for n in found.dnf.normals}
    values = {n.name: text(n.value) for n in found.dnf.normals}
    assert values["dscores"] == "(weights_normalised[h, g, q, k] * (dweights_normalised[h, g, q, k] - corr[h, g, q]))"
    assert values["corr"] == "fold(sum, 0 <= e < d_v, (out[h, g, q, e] * dout[h, g, q, e]))"
    for style in ("moa", "ascii", "latex", "mathml"):
        assert show(found.dnf, style) and all(pending_text(s.before, style) != pending_text(s.after, style) for s in found.steps)


def test_an_edit_of_the_forward_pass_derives_another_backward_pass(tmp_path: Path) -> None:
    for name in ("attention_forward", "attention_backward"):
        for end in ("py", "yaml"):
            (tmp_path / "kernels").mkdir(exist_ok=True)
            (tmp_path / f"kernels/{name}.{end}").write_text((ROOT / f"kernels/{name}.{end}").read_text())
    before = denotation("attention_backward", "full", tmp_path)
    path = tmp_path / "kernels/attention_forward.py"
    path.write_text(path.read_text().replace('Definition("scores", (*h, "q", "k"), scale *', 'Definition("scores", (*h, "q", "k"), scale * scale *'))
    after = denotation("attention_backward", "full", tmp_path)
    assert before.hash == denotation("attention_backward", "full", ROOT).hash != after.hash
    assert text(after.dnf.normal("dQ").value).startswith("((scale[] * scale[]) *")
