"""Lifts: named, legal reshapings of a loop nest. A variant is a list of them."""

from moapipe.loops.lift.script import LIFTS, Lift, LiftStep, apply_script

__all__ = ["LIFTS", "Lift", "LiftStep", "apply_script"]
