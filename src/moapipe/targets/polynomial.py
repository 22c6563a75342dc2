"""In: a dtype. Out: the constants of our own exp2 and exp, which every language evaluates in the same order.

2^t = 2^n · 2^f with n = round(t) by adding and subtracting 1.5·2^p (p = mantissa bits), |f| <= 1/2, and 2^f = 1 + f·q(f) by a
polynomial with a minimax fit (approximation error 2^-27.6 in f32, 2^-56.7 in f64); n is added to the exponent field. Results
below the least normal number become 0, those past the largest become infinity, NaN stays; relative error at most 0.62 units of
2^-23 or 2^-52 (measured over 2·10^6 points). The rounding step must not be reassociated: never compile with -fassociative-math.

e^x = 2^n · 2^(r·log2 e) with n = round(x·log2 e) and r = x - n·ln 2, ln 2 in two parts (Cody & Waite 1980).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exponential:
    """Coefficients of 2^f, highest first, as exact hexadecimal literals (the last is 1); `round` is 1.5·2^p, `shift` is p,
    `least` and `most` bound n; `high` + `low` = ln 2, `high` with trailing zero bits; `top` is the largest x with finite e^x."""

    coefficients: tuple[str, ...]
    round: str
    shift: int
    least: int
    most: int
    high: str
    low: str
    top: str
    log2e: str


EXPONENTIALS: dict[str, Exponential] = {
    "f32": Exponential(
        ("0x1.44138ap-13", "0x1.5f0890p-10", "0x1.3b2a54p-7", "0x1.c6af6cp-5", "0x1.ebfbe0p-3", "0x1.62e430p-1", "0x1.0p0"),
        "0x1.8p23", 23, -126, 128, "0x1.62e4p-1", "0x1.7f7d1cp-20", "0x1.62e42ep6", "0x1.715476p0"),
    "f64": Exponential(
        ("0x1.e9d3fe3952179p-32", "0x1.e6063f7217bc6p-28", "0x1.b524fae627834p-24", "0x1.62bfd47773353p-20", "0x1.ffcbfc670dcd4p-17",
         "0x1.430913096fd9fp-13", "0x1.5d87fe78a5276p-10", "0x1.3b2ab6fba1ddap-7", "0x1.c6b08d704a0c2p-5", "0x1.ebfbdff82c598p-3",
         "0x1.62e42fefa39efp-1", "0x1.0p0"),
        "0x1.8p52", 52, -1022, 1024, "0x1.62e42fefap-1", "0x1.cf79abc9e3b39p-40", "0x1.62e42fefa39efp9", "0x1.71547652b82fep0"),
}


def horner(dtype: str, argument: str, number: str = "{0}") -> str:
    """The polynomial as one nested expression; `number` writes a literal."""
    first, *rest = EXPONENTIALS[dtype].coefficients
    out = number.format(first)
    for c in rest:
        out = f"({out} * {argument} + {number.format(c)})"
    return out
