"""The house keeps its own rules: layers, sizes, names, tables that are complete, rules of one line."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions
from inspect import getdoc
from pathlib import Path

import pytest

from moapipe.cli import PANELS, VERBS
from moapipe.lab import experiment, kernel
from moapipe.report.charts import CHARTS
from moapipe.report.metrics import METRICS
from moapipe.targets.table import TARGETS

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES, FUNCTION_LINES, KERNEL_LINES, SNAKEFILE_LINES = 400, 40, 180, 60
JUNK = {"util", "utils", "helper", "helpers", "common", "misc", "tool", "tools", "base", "core", "manager"}
SOURCES = sorted(p for room in ("src", "kernels", "tests") for p in (ROOT / room).rglob("*.py"))
MODULES = sorted((ROOT / "src").rglob("*.py"))
RULES = sorted((ROOT / "workflow" / "rules").glob("*.smk"))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(path: Path) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]


RECORDS = {"c", "fortran", "cuda", "hip", "opencl", "directive"}
"""Modules of targets that are languages, not walkers."""
WALKERS = [p for p in MODULES if p.parent.name in ("loops", "lift") or (p.parent.name == "targets" and p.stem not in {*RECORDS, "table", "comparison"})]


@pytest.mark.parametrize("path", WALKERS, ids=named)
def test_no_walker_asks_which_language_it_writes(path: Path) -> None:
    """What differs is in the records: a walker names no language, and compares no record's name, source or compiler."""
    for node in ast.walk(ast.parse(path.read_text())):
        assert not (isinstance(node, ast.Constant) and node.value in {*TARGETS, *(t.source for t in TARGETS.values())}), f"line {node.lineno} names {node.value}"
        for side in [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.subject] if isinstance(node, ast.Match) else []:
            asked = {f"{ast.unparse(n.value)}.{n.attr}" for n in ast.walk(side) if isinstance(n, ast.Attribute) and n.attr in ("source", "compiler", "compilers", "name")}
            assert not {a for a in asked if a.split(".")[-2] in ("target", "t", "row")}, f"line {node.lineno} compares {asked}"


def test_hip_is_what_differs_from_cuda() -> None:
    """Its record is under 40 lines, and adds no function."""
    path = ROOT / "src" / "moapipe" / "targets" / "hip.py"
    assert len(path.read_text().splitlines()) < 40 and not functions(path)


def test_imports_go_left() -> None:
    done = subprocess.run([Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def imported(path: Path) -> set[str]:
    """Top-level names of what a file imports, the standard library, this package, its tests and its kernel files apart."""
    found = {a.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Import) for a in n.names}
    found |= {n.module for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.module}
    return {name.partition(".")[0] for name in found} - set(sys.stdlib_module_names) - {"moapipe", "tests", "snakemake_logger_plugin_moapipe", *kernel.names(ROOT)}


def declared(*extras: str) -> set[str]:
    """Distributions that pyproject.toml asks for, with the given extras, in normal form."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for e in extras for d in project["optional-dependencies"][e])]
    return {re.split(r"[<>=\[ ]", d)[0].lower().replace("_", "-") for d in wanted}


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_what_is_imported_is_declared(path: Path) -> None:
    """A package that only the author's environment has fails on a fresh machine, not here."""
    known, allowed = packages_distributions(), declared("test") if path.is_relative_to(ROOT / "tests") else declared()
    missing = {m for m in imported(path) if not {d.lower().replace("_", "-") for d in known.get(m, [m])} & allowed}
    assert not missing


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_files_and_functions_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= (KERNEL_LINES if path.parent.name == "kernels" else FILE_LINES)
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions(path) if f.end_lineno and f.end_lineno - f.lineno >= FUNCTION_LINES}
    assert not long


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_no_file_is_a_junk_drawer(path: Path) -> None:
    assert path.stem not in JUNK and not JUNK & {part for part in path.parent.parts[len(ROOT.parts):]}


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_imports_stand_at_the_top_and_are_absolute(path: Path) -> None:
    source = path.read_text()
    tree, lines = ast.parse(source), source.splitlines()
    top = {id(n) for n in tree.body}
    guarded = {id(n) for i in tree.body if isinstance(i, ast.If) for n in i.body}
    inside = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom) and id(n) not in top | guarded]
    inside = [number for number in inside if not re.search(r"# noqa: PLC0415  \w", lines[number - 1])]  # with its reason behind it
    relative = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level]
    assert not inside and not relative


@pytest.mark.parametrize("path", [p for p in MODULES if p.read_text().strip()], ids=named)
def test_every_module_says_what_goes_in_and_what_comes_out(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_snakefile_is_short() -> None:
    assert len((ROOT / "Snakefile").read_text().splitlines()) < SNAKEFILE_LINES


@pytest.mark.parametrize("path", RULES, ids=named)
def test_rules_call_one_verb_of_their_own_name(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"^\s+(script|run|notebook|wrapper):", text, re.MULTILINE)
    rules = re.findall(r"^rule (\w+):(.*?)(?=^rule |\Z)", text, re.MULTILINE | re.DOTALL)
    assert rules
    for name, body in rules:
        shell = re.findall(r"shell:\n((?:\s+.+\n?)+)", body)
        assert len(shell) == 1 and len(shell[0].strip().splitlines()) == 1, name
        assert re.match(rf"f?\"moapipe {name} ", shell[0].strip()), name
        assert name in VERBS
        assert re.search(r"log:", body), name


def test_every_stage_has_its_rule() -> None:
    rules = {name for path in RULES for name in re.findall(r"^rule (\w+):", path.read_text(), re.MULTILINE)}
    assert rules == {name for name, verb in VERBS.items() if verb.panel == PANELS[0]}


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_its_function(name: str) -> None:
    function = getattr(import_module(f"moapipe.cli.{VERBS[name].module}"), name)
    assert getdoc(function)


@pytest.mark.parametrize("row", [*METRICS, *CHARTS], ids=lambda row: row.name)
def test_every_metric_and_chart_says_what_it_is(row) -> None:
    assert getdoc(row.function)


@pytest.mark.parametrize("name", kernel.names(ROOT))
def test_every_kernel_file_is_complete(name: str) -> None:
    loaded = kernel.load(name, ROOT)
    assert loaded.variants and loaded.forms
    assert getdoc(loaded.module)
    assert all(v.about for v in loaded.variants.values())


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=named)
def test_every_experiment_reads_and_asks_for_something(path: Path) -> None:
    e = experiment.read(str(path), ROOT)
    assert e.file.about and (experiment.builds(e) or experiment.texts(e))
    assert not experiment.builds(e) or all(any(not c.reason for c in experiment.cases(e, g)) for g in experiment.groups(e))


def test_constraints_pin_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    names = {re.split(r"[^\w.-]", w)[0].lower().replace("_", "-") for w in wanted}
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert names <= pinned


def test_makefile_prints_every_target() -> None:
    menu = subprocess.run(["make", "--no-print-directory", "menu"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert all(re.search(rf"make {target}\b", menu) for target in phony[1].split())
