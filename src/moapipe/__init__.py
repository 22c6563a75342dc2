"""moapipe: transformer kernels derived from Mathematics-of-Arrays definitions, predicted, measured, explained."""

__version__ = "0.1.0"
