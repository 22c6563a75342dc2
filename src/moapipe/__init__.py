"""moapipe: transformer kernels derived from Mathematics-of-Arrays definitions, predicted, measured, explained.

`moapipe.call("attention_forward", Q=q, K=k, V=v, variant="online", target="c")` runs any stage of a kernel on your arrays.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "call"]


def __getattr__(name: str) -> Any:
    """`call` is loaded when it is first used, so that importing the package costs nothing."""
    if name == "call":
        return import_module("moapipe.lab.call").call
    raise AttributeError(f"module 'moapipe' has no attribute {name!r}")
