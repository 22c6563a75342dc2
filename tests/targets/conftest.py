"""Golden texts: `golden(name, text)` compares with tests/targets/golden/<name>; `--update-golden` (make golden) rewrites it."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden"


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/targets/golden instead of comparing with it")


@pytest.fixture
def golden(request):
    def compare(name: str, text: str) -> None:
        path = FOLDER / name
        if request.config.getoption("--update-golden", default=False):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"no golden {name}: run `make golden` and read the new file like code"
        assert text == path.read_text(), f"{name} differs: if that is intended, run `make golden` and read the difference like code"

    return compare
