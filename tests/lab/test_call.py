"""Calling a kernel on a user's arrays: every stage gives the same, shapes teach, leading axes come back."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import moapipe
from moapipe.errors import ConfigError, LabError, RecordError
from moapipe.lab.call import STAGES, call, call_file
from moapipe.lab.place import root

# docs: the numeric example of the published derivation, 3 tokens of 4 features
Q = np.array([[-0.1984, 0.2698, 0.3414, -0.0372], [0.2547, -1.0674, 0.3460, -2.5242], [0.6822, -0.6265, 0.0252, 0.3978]])
K = np.array([[-1.1567, 0.6885, -0.1884, 0.4743], [0.2246, 1.7564, 0.5235, -2.3014], [-1.5899, 0.3730, -0.8257, -1.2069]])
V = np.array([[1.0739, 0.4006, -0.9671, 0.4870], [0.5589, -0.7209, -0.7650, 0.2689], [0.8237, 0.3763, 0.8320, 0.0014]])
OUT = np.array([[0.8023, -0.0366, -0.3563, 0.2595], [0.6376, -0.4240, -0.3857, 0.2107], [0.8552, 0.0747, -0.3903, 0.2848]])


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """This repository's kernels with a results folder of its own."""
    here = tmp_path_factory.mktemp("checkout")
    for room in ("kernels", "config"):
        (here / room).symlink_to(root() / room)
    return here


@pytest.mark.parametrize("target", STAGES)
def test_the_published_example_within_one_unit_of_its_last_digit(checkout, target):
    out = call("attention_forward", Q=Q, K=K, V=V, target=target, root=checkout)["out"]
    assert np.abs(out - OUT).max() <= 1e-4


@pytest.mark.parametrize("kernel", ["matmul", "rmsnorm"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_every_stage_of_a_kernel_agrees(checkout, kernel, dtype):
    rng = np.random.default_rng(5)
    given = {"matmul": {"A": rng.standard_normal((5, 7)), "B": rng.standard_normal((7, 3))},
             "rmsnorm": {"x": rng.standard_normal((2, 3, 5)), "gamma": rng.standard_normal(5)}}[kernel]
    expected = call(kernel, given, root=checkout)
    for target in STAGES[1:]:
        out = call(kernel, given, target=target, dtype=dtype, root=checkout)
        assert out.keys() == expected.keys()
        for name, value in out.items():
            assert value.shape == expected[name].shape
            np.testing.assert_allclose(value, expected[name], rtol=1e-5 if dtype == "f32" else 1e-13, atol=1e-6 if dtype == "f32" else 1e-14)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (1, 0, 2)])
def test_leading_axes_come_back(checkout, lead):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((*lead, n, d)) for n, d in ((4, 3), (5, 3), (5, 2)))
    for target in ("reference", "dnf", "onf", "c"):
        out = call("attention_forward", Q=q, K=k, V=v, form="full_lse", target=target, root=checkout)
        assert out["out"].shape == (*lead, 4, 2) and out["lse"].shape == (*lead, 4)


@pytest.mark.parametrize(("lead", "heads", "shared"), [((), 0, 0), ((2,), 4, 2), ((), 3, 3), ((2, 1), 6, 1), ((1,), 0, 0)])
def test_query_heads_share_key_value_heads(checkout, lead, heads, shared):
    """Gradients have the shapes of their arrays; those of K and V are those of repeated heads, summed over the groups."""
    rng, each = np.random.default_rng(1), heads // shared if shared else 1
    front, back = (*lead, heads), (*lead, shared)
    if not lead and not heads:
        front = back = ()
    q, k, v, t = (rng.standard_normal((*f, n, d)) for f, n, d in ((front, 4, 3), (back, 5, 3), (back, 5, 2), (front, 4, 2)))
    wide = {n: np.repeat(x, each, axis=-3) if front else x for n, x in {"K": k, "V": v}.items()}
    saved = call("attention_forward", {**wide, "Q": q}, form="causal_lse", root=checkout)
    given = {"Q": q, "dout": t, "out": saved["out"], "lse": saved["lse"]}
    apart = call("attention_backward", {**given, **wide}, form="causal", root=checkout)
    for target in ("reference", "dnf", "onf"):
        made = call("attention_backward", {**given, "K": k, "V": v}, form="causal", target=target, root=checkout)
        np.testing.assert_allclose(made["dQ"], apart["dQ"], rtol=1e-12, atol=1e-13)
        for n, x in (("dK", k), ("dV", v)):
            summed = apart[n].reshape(*back, each, *x.shape[-2:]).sum(-3) if front else apart[n]
            assert made[n].shape == x.shape
            np.testing.assert_allclose(made[n], summed, rtol=1e-12, atol=1e-13)


def test_heads_that_do_not_divide_are_refused(checkout):
    q, k, v = np.ones((2, 6, 4, 3)), np.ones((2, 4, 5, 3)), np.ones((2, 4, 5, 2))
    with pytest.raises(LabError, match="6 heads of Q, dout cannot share 4 of K, V") as e:
        call("attention_backward", Q=q, K=k, V=v, dout=np.ones((2, 6, 4, 2)), root=checkout)
    assert "multiple" in e.value.hint
    with pytest.raises(LabError, match="leading axes differ"):
        call("attention_backward", Q=q, K=k[:1], V=v[:1], dout=np.ones((2, 6, 4, 2)), root=checkout)


def test_a_scalar_has_a_default_and_can_be_given(checkout):
    half = call("attention_forward", Q=Q, K=K, V=V, scale=0.5, root=checkout)["out"]
    np.testing.assert_array_equal(half, call("attention_forward", Q=Q, K=K, V=V, root=checkout)["out"])  # 1/√4
    assert np.abs(call("attention_forward", Q=Q, K=K, V=V, scale=1.0, root=checkout)["out"] - half).max() > 1e-3


@pytest.mark.parametrize(("change", "message"), [
    ({"K": K[:, :3]}, "d_k is 4 in Q and 3 in K"), ({"V": V[:2]}, "kv_len is 3 in K and 2 in V"), ({"V": None}, "V is missing"),
    ({"Q": Q[0]}, r"Q has shape \(4,\)"), ({"Q": Q[None]}, "leading axes differ"), ({"scale": np.ones(2)}, r"scale has shape \(2,\)"),
])
def test_shapes_that_do_not_conform(checkout, change, message):
    given = {k: v for k, v in ({"Q": Q, "K": K, "V": V} | change).items() if v is not None}
    with pytest.raises(LabError, match=message) as e:
        call("attention_forward", given, root=checkout)
    assert e.value.hint


@pytest.mark.parametrize(("options", "hint"), [
    ({"target": "C"}, "c, fortran"), ({"form": "casual"}, "causal"), ({"variant": "onlin", "target": "c"}, "online"), ({"dtype": "f16"}, "f64"), ({"isa": "avx", "target": "onf"}, "avx2"), ({"q": Q}, "Q")])
def test_a_wrong_name_gets_the_nearest(checkout, options, hint):
    with pytest.raises(ConfigError) as e:
        call("attention_forward", {"Q": Q, "K": K, "V": V}, root=checkout, **options)
    assert hint in e.value.hint


def test_from_python_in_one_line_and_from_a_file(checkout, tmp_path):
    np.savez(tmp_path / "in.npz", Q=Q, K=K, V=V)
    call_file("attention_forward", tmp_path / "in.npz", tmp_path / "out.npz", root=checkout)
    with np.load(tmp_path / "out.npz") as data:
        np.testing.assert_array_equal(data["out"], moapipe.call("attention_forward", Q=Q, K=K, V=V, root=checkout)["out"])
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises(LabError, match="cannot read arrays"):
        call_file("attention_forward", tmp_path / "bad.npz", tmp_path / "out.npz", root=checkout)


@pytest.mark.parametrize("content", ["", "text", "cut", "flipped", "array", "objects"])
def test_what_holds_no_arrays_is_one_message(checkout, tmp_path, content):
    path = tmp_path / "in.npz"
    np.savez(path, Q=Q, K=K, V=V)
    whole = path.read_bytes()
    match content:
        case "array":
            with path.open("wb") as f:
                np.save(f, Q)
        case "objects":
            np.savez(path, Q=np.array([None]), K=K, V=V)
        case _:
            path.write_bytes({"": b"", "text": b"hello", "cut": whole[: len(whole) // 2], "flipped": whole[:200] + bytes([whole[200] ^ 255]) + whole[201:]}[content])
    with pytest.raises(LabError) as e:
        call_file("attention_forward", path, tmp_path / "out.npz", root=checkout)
    assert "numpy.savez" in e.value.hint and not (tmp_path / "out.npz").exists() and "pickle" not in str(e.value)


@pytest.mark.parametrize("threads", [-1, 0, 1025, 1000000])
def test_a_number_of_threads_that_no_runtime_takes_is_refused(checkout, threads):
    with pytest.raises(LabError, match=f"{threads} threads") as e:
        call("attention_forward", {"Q": Q, "K": K, "V": V}, target="c", threads=threads, root=checkout)
    assert "1 to 1024" in e.value.hint


@pytest.mark.parametrize("target", ["reference", "onf"])
@pytest.mark.parametrize("wrong", [Q + 1j, Q.astype(str), np.zeros(Q.shape, "M8[s]"), np.zeros(Q.shape, [("re", "f8")]), Q.astype(object)], ids=lambda x: str(x.dtype))
def test_what_is_no_real_number_is_never_cast(checkout, wrong, target):
    with pytest.raises(LabError, match=r"Q holds .*, no real numbers"):
        call("attention_forward", Q=wrong, K=K, V=V, variant="online", target=target, root=checkout)


def test_what_is_no_file_is_not_replaced(checkout, tmp_path):
    """As a device is none: `--output /dev/null` must not take its place."""
    np.savez(tmp_path / "in.npz", Q=Q, K=K, V=V)
    os.mkfifo(tmp_path / "out")
    with pytest.raises(RecordError, match="is no file") as e:
        call_file("attention_forward", tmp_path / "in.npz", tmp_path / "out", root=checkout)
    assert e.value.hint.startswith("name a file") and (tmp_path / "out").is_fifo()


def test_a_single_row_has_no_leading_axes(checkout):
    made = call("rmsnorm", x=Q[0], gamma=np.ones(4), root=checkout)
    assert made["z"].shape == (4,) and made["rinv"].shape == ()
    np.testing.assert_allclose(made["z"], call("rmsnorm", x=Q, gamma=np.ones(4), root=checkout)["z"][0])


def test_importing_the_package_is_light():
    code = "import sys, moapipe; print([m for m in ('numpy', 'pydantic', 'sympy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    with pytest.raises(AttributeError):
        moapipe.cell  # noqa: B018
