"""Kernel files: what is read without running them, what is refused, and what their digests see."""

import sys
from pathlib import Path

import pytest

from moapipe.errors import ConfigError
from moapipe.lab.experiment import all_builds
from moapipe.lab.kernel import FAMILIES, code_digest, digest, load, names, scan, sizes_at, variant_digest
from moapipe.lab.kernel import TARGETS as TARGET_NAMES
from moapipe.lab.place import root
from moapipe.targets.table import TARGETS


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_name_that_is_a_parameter_and_a_size_is_known_once():
    with pytest.raises(ConfigError) as e:
        sizes_at(load("matmul", root()), {"Q": 6})
    assert e.value.hint == "known: m, n, k"


def test_scan_reads_what_experiments_need(repository):
    k = scan("toy", repository)
    assert k.sizes == ("rows", "columns", "depth")
    assert k.parameters == {"n": ("rows", "columns"), "d": ("depth",)}
    assert list(k.forms) == ["full", "causal"] and list(k.variants) == ["plain", "tiled"]
    assert k.variant("tiled").lifts[1] == {"skip": {"axis": "io", "mask": "scores"}, "when": "causal"}
    assert names(repository) == ("toy",)


def test_a_variant_may_be_written_for_some_forms_only(repository):
    edit(repository / "kernels/toy.yaml", "about: tiles\n", "about: tiles\n  forms: [causal]\n")
    k = scan("toy", repository)
    assert (k.variants_of("full"), k.variants_of("causal")) == (("plain",), ("plain", "tiled"))
    built = {(b.form, b.variant) for b in all_builds(repository, "plain", ("toy",))}
    assert built == {("full", "plain"), ("causal", "plain"), ("causal", "tiled")}
    assert not k.variants_of("full", "cuda")


def test_a_variant_may_name_a_family_of_languages(repository):
    edit(repository / "kernels/toy.yaml", "about: tiles\n  targets: [c]", "about: tiles\n  targets: [c, simt]")
    assert scan("toy", repository).variant("tiled").targets == ("c", *FAMILIES["simt"])


def test_every_family_is_of_targets_that_there_are():
    assert tuple(TARGETS) == TARGET_NAMES and all(set(family) <= set(TARGETS) for family in FAMILIES.values())


def test_forms_may_be_a_comprehension(repository):
    edit(repository / "kernels/toy.py", 'FORMS = {"full": {}, "causal": {"causal": "top_left"}}',
         'FORMS = {f"{a}{b}": {"a": a == "t", "b": bool(b)} for a in "nt" for b in ("", "_x")}')
    assert scan("toy", repository).forms["t_x"] == {"a": True, "b": True}


def test_scan_does_not_run_the_file(repository):
    with (repository / "kernels/toy.py").open("a") as f:
        f.write("\nraise RuntimeError('run')\n")
    scan("toy", repository)
    with pytest.raises(ConfigError, match="the file fails: RuntimeError: run"):
        load("toy", repository)


@pytest.mark.parametrize("line", ["import nosuchmodule", "from moapipe.algebra.expr import nosuch", "1 / 0", "undefined", "raise SystemExit(0)"])
def test_what_a_file_raises_when_it_runs_is_one_message_with_its_line(repository, line):
    path = repository / "kernels/toy.py"
    last = len(path.read_text().splitlines()) + 1
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(ConfigError, match="the file fails") as e:
        load("toy", repository)
    assert e.value.where == f"kernels/toy.py:{last}"


def test_what_a_function_of_the_file_raises_is_one_message_with_its_line(repository):
    path = repository / "kernels/toy.py"
    last = len(path.read_text().splitlines()) + 3
    path.write_text(f"{path.read_text()}\ndef reference(xp, inputs, form):\n    return {{}}['nosuch']\n")
    for arguments, where in ((({}, {}, {}), f"kernels/toy.py:{last}"), ((), "kernels/toy.py")):
        with pytest.raises(ConfigError, match=r"reference fails: (KeyError|TypeError)") as e:
            load("toy", repository).call("reference", *arguments)
        assert e.value.where == where


@pytest.mark.parametrize("made", [None, 3, {}, {"other": 1}, {"out": 1, "more": 2}])
def test_a_function_gives_what_it_must(repository, made):
    scan("toy", repository).gives("reference", {"out": 1}, ("out",))
    with pytest.raises(ConfigError, match="reference gives") as e:
        scan("toy", repository).gives("reference", made, ("out",))
    assert "out" in e.value.hint


@pytest.mark.parametrize(("name", "value"), [
    ("SIZES", "'rows'"), ("SIZES", "3"), ("SIZES", "()"), ("SIZES", "(1, 2)"), ("PARAMETERS", "3"), ("PARAMETERS", "{'n': 1}"), ("PARAMETERS", "{'n': 'rows'}"),
    ("FORMS", "{}"), ("FORMS", "['full']"), ("FORMS", "{'full': None}"), ("FORMS", "{1: {}}"),
])
def test_literals_of_another_shape_are_refused(repository, name, value):
    with (repository / "kernels/toy.py").open("a") as f:
        f.write(f"\n{name} = {value}\n")
    with pytest.raises(ConfigError, match=f"{name} cannot be") as e:
        scan("toy", repository)
    assert e.value.hint.startswith(name)


@pytest.mark.parametrize(("file", "content", "says"), [
    ("toy.py", b"# \xe9\n", "UTF-8"), ("toy.py", b"\0", "syntax error"), ("toy.py", None, "no kernel"),
    ("toy.yaml", b"\xff\xfe\x00", "UTF-8"), ("toy.yaml", b"\x00", "not YAML"), ("toy.yaml", b"{}", "no variant"), ("toy.yaml", b"", "should be a mapping"),
    ("toy.yaml", b"? [a, b]\n: x\n", "is no key"), ("toy.yaml", b"1: {about: x, targets: [c]}", "key 1 is no word"), ("toy.yaml", b"v: {about: x, targets: []}", "v.targets"),
    ("toy.yaml", b"v: {about: x, targets: c}", "should be a list"), ("toy.yaml", b"v: {about: x, targets: [c], params: {A: true}}", "v.params.A"),
    ("toy.yaml", b"v: {about: x, targets: [c], lifts: [{include: {}}]}", "key variant is missing"),
    ("toy.yaml", b"v: {about: x, targets: [c], lifts: [{include: {varyant: a}}]}", "unknown key varyant"),
    ("toy.yaml", b"v: {about: x, targets: [c], lifts: [{include: null}]}", "should be a mapping"),
])
def test_what_is_no_kernel_file_is_refused(repository, file, content, says):
    path = repository / "kernels" / file
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as e:
        scan("toy", repository)
    assert "pydantic" not in str(e.value)


def test_load_gives_the_functions(repository):
    assert load("toy", repository).call("definitions", {"causal": True}) == {"causal": True}


@pytest.mark.parametrize(("file", "old", "new", "where", "hint"), [
    ("toy.yaml", "targets: [c]\n", "targets: [c]\n  lift: []\n", "kernels/toy.yaml", "did you mean 'lifts'?"),
    ("toy.yaml", "targets: [c]\n", "targets: [rust]\n", "kernels/toy.yaml", "expected 'c', 'fortran',"),
    ("toy.yaml", "about: tiles", "about: tiles\n  about: more", "kernels/toy.yaml:5", "keep one"),
    ("toy.yaml", "about: tiles", "about: [tiles", "kernels/toy.yaml", "indentation"),
    ("toy.yaml", "  about: tiles\n", "", "kernels/toy.yaml", "add about"),
    ("toy.yaml", "targets: [c]\n", "targets: [c]\n  forms: [casual]\n", "kernels/toy.yaml", "did you mean 'causal'?"),
    ("toy.py", '"d": ("depth",)', '"d": ("width",)', "kernels/toy.py", "two sizes"),
    ("toy.py", '"causal": "top_left"', '"causal": mask', "kernels/toy.py:4", "literal"),
    ("toy.py", "FORMS", "FORM", "kernels/toy.py", "architecture.md"),
    ("toy.py", "def inputs(", "def inputs((", "kernels/toy.py:12", ""),
])
def test_a_wrong_file_is_refused_with_its_place_and_a_hint(repository, file, old, new, where, hint):
    edit(repository / "kernels" / file, old, new)
    with pytest.raises(ConfigError) as e:
        scan("toy", repository)
    assert e.value.where.startswith(where) and hint in e.value.hint


def test_a_missing_function_is_named(repository):
    edit(repository / "kernels/toy.py", "def useful_flops", "def usefulflops")
    with pytest.raises(ConfigError, match="useful_flops"):
        load("toy", repository)


@pytest.mark.parametrize("ask", [lambda r: scan("toi", r), lambda r: scan("toy", r).form("ful"), lambda r: scan("toy", r).variant("tile")])
def test_an_unknown_name_gets_the_nearest(repository, ask):
    with pytest.raises(ConfigError) as e:
        ask(repository)
    assert "did you mean" in e.value.hint


def test_sizes_follow_parameters_and_single_sizes_override(repository):
    k = scan("toy", repository)
    assert sizes_at(k, {"n": 4, "d": 2}) == {"rows": 4, "columns": 4, "depth": 2}
    assert sizes_at(k, {"n": 4, "columns": 9, "d": 2}) == {"rows": 4, "columns": 9, "depth": 2}
    assert sizes_at(k, {"columns": 9, "d": 2, "n": 4}) == {"rows": 4, "columns": 9, "depth": 2}
    with pytest.raises(ConfigError, match="depth"):
        sizes_at(k, {"n": 4})
    with pytest.raises(ConfigError) as e:
        sizes_at(k, {"n": 4, "D": 2})
    assert e.value.hint


@pytest.mark.parametrize(("file", "old", "new"), [
    ("toy.py", "# the definitions", "# said otherwise"), ("toy.py", '"""What is computed."""', '"""All."""'),
    ("toy.py", "return form", "return   form"), ("toy.yaml", "about: tiles", "about: other words"), ("toy.yaml", "\ntiled:", "\n# tiles\ntiled:"),
])
def test_comments_prose_and_layout_change_no_digest(repository, file, old, new):
    before = variant_digest(scan("toy", repository), "tiled")
    edit(repository / "kernels" / file, old, new)
    assert variant_digest(scan("toy", repository), "tiled") == before


@pytest.mark.parametrize(("file", "old", "new", "changed"), [
    ("toy.py", "return form", "return None", {"tiled", "plain"}), ("toy.yaml", "Br: 2*MR", "Br: 4*MR", {"tiled"}),
    ("toy.yaml", "outer: io", "outer: iu", {"tiled"}),
])
def test_meaning_changes_the_digest_of_what_depends_on_it(repository, file, old, new, changed):
    before = {v: variant_digest(scan("toy", repository), v) for v in ("tiled", "plain")}
    edit(repository / "kernels" / file, old, new)
    after = {v: variant_digest(scan("toy", repository), v) for v in ("tiled", "plain")}
    assert {v for v in before if before[v] != after[v]} == changed


def test_digest_of_yaml_is_of_its_data(repository):
    path = repository / "kernels/toy.yaml"
    before = digest(path)
    path.write_text("# a comment\n" + path.read_text())
    assert digest(path) == before


def test_code_is_digested_by_its_meaning():
    assert code_digest("lab/kernel.py") != code_digest("lab/experiment.py") != code_digest("lab")
    with pytest.raises(ConfigError, match="nothing/here"):
        code_digest("nothing/here")


def beside(repository: Path, name: str, extra: str = "") -> None:
    """A second kernel file, toy's own functions with an import of toy, and `extra` at its end."""
    text = (repository / "kernels/toy.py").read_text()
    body = text[text.index('"""', 3) + 3:]
    (repository / f"kernels/{name}.py").write_text(f'"""Builds on toy."""\n\nimport toy\n{body}\n{extra}\n')
    (repository / f"kernels/{name}.yaml").write_text((repository / "kernels/toy.yaml").read_text())


def test_a_kernel_file_may_import_another_by_its_plain_name(repository):
    beside(repository, "other", "SEEN = toy.definitions({'full': 1})")
    assert load("other", repository).module.SEEN == {"full": 1}
    assert "toy" not in sys.modules                                  # nobody else sees it


def test_an_edit_of_what_is_imported_changes_the_digest_and_what_is_loaded(repository):
    beside(repository, "other", "SEEN = toy.definitions({'full': 1})")
    before, seen = variant_digest(scan("other", repository), "tiled"), load("other", repository).module.SEEN
    edit(repository / "kernels/toy.py", "# the definitions", "# said otherwise")
    assert variant_digest(scan("other", repository), "tiled") == before
    edit(repository / "kernels/toy.py", "return form", "return {'was': form}")
    assert variant_digest(scan("other", repository), "tiled") != before
    after = load("other", repository).module.SEEN
    assert after == {"was": seen}


def test_kernel_files_that_import_each_other_are_refused(repository):
    beside(repository, "other")
    edit(repository / "kernels/toy.py", "SIZES", "import other\n\nSIZES")
    with pytest.raises(ConfigError, match="other imports toy imports other"):
        scan("other", repository)
