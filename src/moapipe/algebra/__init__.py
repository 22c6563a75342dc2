"""Definitions in Mathematics of Arrays, reduced by program to a denotational normal form."""
