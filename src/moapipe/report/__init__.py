"""Measurements become datasets, charts and an archive that people browse."""
