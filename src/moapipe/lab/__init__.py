"""Builds, validates and measures; every number that leaves here carries how it was made."""
