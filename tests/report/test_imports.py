"""A library has one home in report, so that it can be replaced in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import moapipe.report

ROOM = Path(next(iter(moapipe.report.__path__)))
HOMES = {"altair": {"charts", "mark", "strain"}, "vl_convert": {"charts"}, "jinja2": {"site"}, "markupsafe": {"site"}, "pygments": {"chapter"}, "rich": {"table", "bar", "figure", "evidence", "accuracy"}, "sympy": {"claim"}}


@pytest.mark.parametrize("library", HOMES)
def test_library_is_imported_in_its_home_only(library: str) -> None:
    found = set()
    for path in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == library for name in names):
                found.add(path.stem)
    assert found == HOMES[library]
