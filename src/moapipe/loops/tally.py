"""In: nothing. Out: the records that the interpreter and the cost model share, so that `==` compares them.

The three counts are defined in docs/cost_model.md; this module only names their fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from moapipe.loops.onf import Space


@dataclass(frozen=True, slots=True)
class Access:
    """How often the loops load and store elements of one array. An accumulation loads and stores its target."""

    space: Space
    loads: int
    stores: int


@dataclass(frozen=True, slots=True)
class Touch:
    """How many distinct elements of one array are read and written.

    Private and register arrays begin a new life at every Alloc: `lives` counts them and `read`, `written` add up the distinct
    elements of each life. All other arrays live once. `elements` is the allocated size of one life.
    """

    space: Space
    elements: int
    lives: int
    read: int
    written: int
