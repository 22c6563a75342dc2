"""What the README and the docs promise: files that are there, commands that work, targets that make knows."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from moapipe import cli
from moapipe.cli import VERBS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```\n(.*?)```", README, re.DOTALL)
COMMANDS = [shlex.split(line, comments=True) for block in BLOCKS for line in block.splitlines() if line.startswith(("moapipe ", "make "))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(((?!http)[^)#]+)\)", page.read_text())
    assert all((page.parent / link).exists() for link in links)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    named = re.findall(r"`((?:config|docs|src|workflow)/[\w./-]+\.(?:yaml|md|py|smk))`", page.read_text())
    examples = {"config/machines/y.yaml", "config/machines/<machine>.yaml"}
    assert all((ROOT / name).exists() for name in named if name not in examples), named


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_are_understood(words: list[str]) -> None:
    """Options and targets exist; nothing is run."""
    match words:
        case ["make", target]:
            subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=True)
        case ["moapipe", verb, *rest]:
            command = get_command(cli.application(verb)).commands[verb]
            options = {o for p in command.params for o in p.opts}
            assert verb in VERBS
            assert {w for w in rest if w.startswith("--")} <= options
        case _:
            raise AssertionError(words)


def test_the_two_commands_come_first() -> None:
    assert [words for words in COMMANDS if words[0] == "make"][:2] == [["make", "run"], ["make", "test"]]


def test_experiments_of_the_readme_are_those_that_there_are() -> None:
    assert set(re.findall(r"^\| `config/(\w+)\.yaml`", README, re.MULTILINE)) == {p.stem for p in (ROOT / "config").glob("*.yaml")}


def test_every_class_of_mistakes_names_tests_that_exist() -> None:
    table = (ROOT / "docs/validation.md").read_text().split("## Known mistakes of others")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "held by" not in line]
    assert len(rows) >= 20
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py): (test_\w+)`", row)
        assert named, row
        for path, test in named:
            assert f"def {test}(" in (ROOT / path).read_text(), f"{path}: {test}"
