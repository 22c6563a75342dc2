"""In: kernels/<name>.py and kernels/<name>.yaml. Out: the kernel file as a record, its digests, and its loaded module.

What an experiment needs (sizes, parameters, forms, variants) is read without running any Python: SIZES, PARAMETERS and FORMS
stand alone. `load` runs the file and adds the module, for the stages that need definitions, inputs or the reference. A kernel
file may import another by its plain name (a backward pass its forward pass); its digest covers what it imports.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from pydantic import Field, RootModel, field_validator

from moapipe.errors import ConfigError, MoapipeError
from moapipe.lab.document import Strict, choose, read_yaml
from moapipe.lab.document import load as load_yaml
from moapipe.lab.include import Include, includes, written_out

TargetName = Literal["c", "fortran", "cuda", "hip", "opencl", "c_omp_target", "fortran_omp_target", "c_openacc", "fortran_openacc"]
TARGETS: tuple[str, ...] = get_args(TargetName)
FAMILIES: dict[str, tuple[TargetName, ...]] = {
    "simt": ("cuda", "hip", "opencl"), "directives": ("c_omp_target", "fortran_omp_target", "c_openacc", "fortran_openacc"),
}
"""Languages that a variant names together: texts of threads for GPUs; loops under directives that move them to a device."""
SHAPES = {
    "SIZES": 'SIZES = ("q_len", "d") names each size once', "PARAMETERS": 'PARAMETERS = {"n": ("q_len", "kv_len")} names the sizes that each one sets',
    "FORMS": 'FORMS = {"full": {}, "causal": {"causal": True}} gives each form its options, the first is the default',
}
LITERALS = tuple(SHAPES)
PLAIN = {"bool": bool, "int": int, "str": str, "dict": dict, "tuple": tuple, "list": list, "range": range, "zip": zip, "enumerate": enumerate}
FUNCTIONS = ("definitions", "inputs", "reference", "baseline", "error_bound", "useful_flops", "lower_bound")


class Variant(Strict):
    """One block of kernels/x.yaml. `targets` may name families. `params` are tile sizes of the variant, expressions in the tile
    parameters; `tiny` are the values of the same names that validation uses for its deliberately small tiles. `forms` are those that
    it is written for (empty: all). `lifts` are items and lists of them. `deterministic`: the result is the same bit for bit in every run and with any number of threads; tests hold it to that."""

    about: str
    targets: tuple[TargetName, ...] = Field(min_length=1)
    forms: tuple[str, ...] = ()
    deterministic: bool = True
    inline: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    params: dict[str, int | str] = Field(default={})
    tiny: dict[str, int | str] = Field(default={})
    lifts: tuple[dict[str, Any], ...] = ()

    @field_validator("targets", mode="before")
    @classmethod
    def _families(cls, names: Any) -> Any:
        return tuple(t for n in names for t in FAMILIES.get(str(n), (n,))) if isinstance(names, list) else names

    @field_validator("lifts", mode="before")
    @classmethod
    def _spliced(cls, lifts: Any) -> Any:
        return tuple(_spliced(lifts)) if isinstance(lifts, list) else lifts


def _spliced(v: Any) -> Any:
    """A list inside a list is spliced into it, so that an alias may stand for several lifts or names."""
    match v:
        case list():
            return [x for e in map(_spliced, v) for x in (e if isinstance(e, list) else [e])]
        case dict():
            return {k: _spliced(e) for k, e in v.items()}
        case _:
            return v


class Variants(RootModel[dict[str, Variant]]):
    """kernels/x.yaml: variant name -> Variant."""


@dataclass(frozen=True, eq=False)
class KernelFile:
    """A kernel: its names, its sizes in ABI order, what experiments set (`parameters`: parameter -> the sizes that it sets),
    its forms (name -> options) and its variants. `module` is None until `load`."""

    name: str
    path: Path
    sizes: tuple[str, ...]
    parameters: Mapping[str, tuple[str, ...]]
    forms: Mapping[str, Mapping[str, Any]]
    variants: Mapping[str, Variant]
    digest: str
    module: ModuleType | None = None

    @property
    def where(self) -> str:
        return f"kernels/{self.name}.py"

    def form(self, name: str) -> Mapping[str, Any]:
        return self.forms[choose(name, list(self.forms), f"form of {self.name}", self.where)]

    def variant(self, name: str) -> Variant:
        return self.variants[choose(name, list(self.variants), f"variant of {self.name}", f"kernels/{self.name}.yaml")]

    def variants_of(self, form: str, target: str = "") -> tuple[str, ...]:
        """The variants that are written for a form, and for a target when one is named, in the order of the file."""
        return tuple(n for n, v in self.variants.items() if form in (v.forms or (form,)) and target in (*v.targets, ""))

    def call(self, function: str, *args: Any) -> Any:
        """Run a function of the kernel file. ConfigError: what it raises, with its line."""
        if self.module is None:
            raise ConfigError(f"{self.where} was scanned, not loaded", where=self.name)
        with blamed(self.path, function):
            return getattr(self.module, function)(*args)

    def gives(self, function: str, made: Any, outputs: Sequence[str]) -> None:
        """ConfigError unless what a function of the file gave has a value for each output and no other."""
        found = sorted(made) if isinstance(made, dict) else repr(made)
        if found != sorted(outputs):
            raise ConfigError(f"{function} gives {found}", where=self.where, hint=f"it must give {{name: value}} for {', '.join(outputs)}")


def names(root: Path) -> tuple[str, ...]:
    """Every kernel of kernels/, in text order."""
    return tuple(sorted(p.stem for p in (root / "kernels").glob("*.py") if p.is_file() and not p.stem.startswith("_")))


def scan(name: str, root: Path) -> KernelFile:
    """The kernel file without running it. ConfigError: no such kernel, a literal that is missing, a bad variant."""
    return _scan(name, root, _stamp(name, root))


@lru_cache(maxsize=64)
def _scan(name: str, root: Path, stamp: object) -> KernelFile:
    path, where = root / "kernels" / f"{name}.py", f"kernels/{name}.py"
    tree = _tree(path, where)
    found = _literals(tree, where)
    variants = _variants(name, root, found["FORMS"])
    parameters = {p: tuple(s) for p, s in found["PARAMETERS"].items()}
    _check_parameters(found["SIZES"], parameters, where)
    for variant, block in variants.items():
        for form in block.forms:
            choose(form, list(found["FORMS"]), "form", f"kernels/{name}.yaml: {variant}")
    return KernelFile(name, path, tuple(found["SIZES"]), parameters, found["FORMS"], variants, _digest(name, root, ()))


def _variants(name: str, root: Path, forms: Mapping[str, Mapping[str, Any]], inside: tuple[tuple[str, str], ...] = ()) -> dict[str, Variant]:
    """The variants of kernels/<name>.yaml with their includes written out."""
    found = load_yaml(Variants, root / "kernels" / f"{name}.yaml", f"kernels/{name}.yaml").root
    if not found:
        raise ConfigError("it has no variant", where=f"kernels/{name}.yaml", hint="plain: {about: the naive loop nest, targets: [c, fortran]} is one")
    return {v: _included(name, v, found, root, forms, inside) for v in found}


def _included(
    name: str, variant: str, found: Mapping[str, Variant], root: Path, forms: Mapping[str, Mapping[str, Any]], inside: tuple[tuple[str, str], ...],
) -> Variant:
    """One variant with its includes written out: their lifts in place, their parameters before its own."""
    block, where = found[variant], f"kernels/{name}.yaml: {variant}"
    if (name, variant) in inside:
        raise ConfigError("the variant includes itself", where=where, hint="move what both need into a variant of its own")
    parts: list[Variant] = []

    def find(asked: Include) -> tuple[tuple[dict[str, Any], ...], Mapping[str, Any]]:
        other = asked.kernel or name
        choose(other, names(root), "kernel", where)
        blocks = found if other == name else load_yaml(Variants, root / "kernels" / f"{other}.yaml", f"kernels/{other}.yaml").root
        choose(asked.variant, list(blocks), f"variant of {other}", where)
        own = forms if other == name else _literals(_tree(root / "kernels" / f"{other}.py", where), where)["FORMS"]
        options = own[choose(asked.form, list(own), f"form of {other}", where)] if asked.form else {}
        parts.append(_included(other, asked.variant, blocks, root, own, (*inside, (name, variant))))
        return parts[-1].lifts, options

    lifts = written_out(block.lifts, find, where)
    params = {k: v for p in (*parts, block) for k, v in p.params.items()}
    tiny = {k: v for p in (*parts, block) for k, v in p.tiny.items()}
    return block.model_copy(update={"lifts": lifts, "params": params, "tiny": tiny})


def included(name: str, root: Path) -> tuple[str, ...]:
    """The other kernels whose variants a kernel's variants include."""
    path = root / "kernels" / f"{name}.yaml"
    found = load_yaml(Variants, path, f"kernels/{name}.yaml").root if path.is_file() else {}
    return tuple(dict.fromkeys(i.kernel for v in found.values() for i in includes(v.lifts, f"kernels/{name}.yaml") if i.kernel and i.kernel != name))


def imported(name: str, root: Path) -> tuple[str, ...]:
    """The kernel files that a kernel file imports by their plain names."""
    known = set(names(root))
    found: list[str] = []
    for node in _tree(root / "kernels" / f"{name}.py", f"kernels/{name}.py").body:
        match node:
            case ast.Import(names=aliases):
                found += [a.name for a in aliases if a.name in known]
            case ast.ImportFrom(module=str() as module, level=0) if module in known:
                found.append(module)
            case _:
                pass
    return tuple(dict.fromkeys(found))


def _digest(name: str, root: Path, inside: tuple[str, ...]) -> str:
    """16 hex digits of the syntax trees of a kernel file and of those that it imports. ConfigError for a circle."""
    where = f"kernels/{name}.py"
    if name in inside:
        raise ConfigError(f"{' imports '.join((*inside, name))}", where=where, hint="move what both need into one of them")
    own = ast.dump(_bare(_tree(root / where, where)))
    others = [_digest(n, root, (*inside, name)) for n in imported(name, root)]
    return _hash("".join((own, *others)))


def load(name: str, root: Path) -> KernelFile:
    """The kernel file with its module, the same record until one of its files changes. ConfigError names what the file lacks."""
    return _load(name, root, _stamp(name, root))


def _stamp(name: str, root: Path, inside: tuple[str, ...] = ()) -> tuple[object, ...]:
    """What a kernel file is made from: the bytes of its two files and of those that they import and include. Reading them costs
    microseconds, and what they say is worked out once. ConfigError: no such kernel."""
    known = names(root)
    choose(name, known, "kernel", "kernels/")
    files = (root / "kernels" / f"{name}.{end}" for end in ("py", "yaml"))
    own = tuple(f.read_bytes() if f.is_file() else None for f in files)
    return (*own, *((n, _stamp(n, root, (*inside, name))) for n in _others(name, root, own, known) if n not in (*inside, name)))


@lru_cache(maxsize=256)
def _others(name: str, root: Path, own: object, known: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*imported(name, root), *included(name, root))))


@lru_cache(maxsize=64)
def _load(name: str, root: Path, stamp: object) -> KernelFile:
    kernel = scan(name, root)
    others = {n: load(n, root).module for n in imported(name, root)}
    spec = spec_from_file_location(f"moapipe_kernel_{name}", kernel.path)
    if spec is None or spec.loader is None:
        raise ConfigError("cannot be imported", where=kernel.where)
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    with _importable(others), blamed(kernel.path, "the file"):
        spec.loader.exec_module(module)
    if lacking := [f for f in FUNCTIONS if not callable(getattr(module, f, None))]:
        raise ConfigError(f"has no {', '.join(lacking)}", where=kernel.where, hint="docs/architecture.md lists what a kernel file holds")
    return replace(kernel, module=module)


@contextmanager
def blamed(path: Path, what: str) -> Iterator[None]:
    """What a kernel file raises is its author's to mend: ConfigError with the last line of the file that was reached. Our own errors,
    and memory that runs out, stay as they are."""
    try:
        yield
    except (MoapipeError, MemoryError):
        raise
    except (Exception, SystemExit) as e:
        lines = [frame.lineno for frame in traceback.extract_tb(e.__traceback__) if Path(frame.filename) == path]
        where = f"kernels/{path.name}" + (f":{lines[-1]}" if lines else "")
        raise ConfigError(f"{what} fails: {type(e).__name__}: {e}", where=where, hint="the line is the last one of the file that was reached") from e


@contextmanager
def _importable(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """While a kernel file runs, its neighbours have their plain names; two repositories never share them."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update({name: m for name, m in modules.items() if m is not None})
    try:
        yield
    finally:
        for name, m in before.items():
            if m is None:
                del sys.modules[name]
            else:
                sys.modules[name] = m


def sizes_at(kernel: KernelFile, at: Mapping[str, int]) -> dict[str, int]:
    """Run parameters ({"B": 2, "n": 2048, "d": 64}) as the kernel's sizes; a size's own name overrides its parameter."""
    out: dict[str, int] = {}
    for key, value in at.items():
        if key not in kernel.sizes:
            choose(key, (*kernel.parameters, *kernel.sizes), f"size parameter of {kernel.name}", kernel.where)
            out.update({s: value for s in kernel.parameters[key] if s not in at})
        else:
            out[key] = value
    if lacking := [s for s in kernel.sizes if s not in out]:
        owners = sorted({p for p, s in kernel.parameters.items() if set(s) & set(lacking)})
        raise ConfigError(f"sizes {', '.join(lacking)} are not set", where=kernel.name, hint=f"set {', '.join(owners)}")
    return {s: out[s] for s in kernel.sizes}


# ------------------------------------------------------------------ digests


def digest(path: Path) -> str:
    """16 hex digits of what a file means: the syntax tree of Python without comments, docstrings and positions; the data of YAML."""
    match path.suffix:
        case ".py":
            return _hash(ast.dump(_bare(_tree(path, path.name))))
        case ".yaml" | ".yml":
            return _hash(json.dumps(read_yaml(path), sort_keys=True))
        case _:
            return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def variant_digest(kernel: KernelFile, variant: str) -> str:
    """Digest of the kernel's Python and of one variant's block, its `about` and its claim left out: neither re-measures anything."""
    block = kernel.variant(variant).model_dump(exclude={"about", "deterministic"})
    return _hash(kernel.digest + json.dumps(block, sort_keys=True))


def code_digest(*parts: str) -> str:
    """Digest of files and folders of this package, named from its root ("lab/build.py", "report"): comments change nothing."""
    package = Path(__file__).resolve().parent.parent
    found = [f for part in parts for f in ([package / part] if (package / part).is_file() else (package / part).rglob("*"))]
    files = sorted(f for f in found if f.is_file() and f.suffix != ".pyc")
    if not files:
        raise ConfigError(f"no code in {', '.join(parts)}", where=str(package.name))
    return _hash("".join(f"{f.relative_to(package).as_posix()}={digest(f)}" for f in files))


@cache
def engine_digest() -> str:
    """Digest of the code that turns definitions into text: algebra, loops, targets."""
    return code_digest("algebra", "loops", "targets")


def _hash(s: str) -> str:
    return hashlib.sha256(s.encode()).hexdigest()[:16]


def _tree(path: Path, where: str) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as e:
        raise ConfigError(f"syntax error: {e.msg}", where=f"{where}:{e.lineno or 1}", hint=(e.text or "").strip()) from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"this is no text in UTF-8: {e.reason} at byte {e.start}", where=where, hint="save it as UTF-8") from e


def _bare(tree: ast.Module) -> ast.Module:
    """The tree without docstrings (in place: callers own it)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())), *rest]:
                    node.body = rest or [ast.Pass()]
    return tree


def _literals(tree: ast.Module, where: str) -> dict[str, Any]:
    """SIZES, PARAMETERS and FORMS: expressions over literals and PLAIN builtins, worked out alone, the rest of the file unread."""
    out: dict[str, Any] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name in LITERALS:
                try:
                    out[name] = eval(compile(ast.Expression(value), where, "eval"), {"__builtins__": PLAIN}, {})
                except Exception as e:
                    hint = "use literals and comprehensions over them: experiments read it without running the file"
                    raise ConfigError(f"{name} cannot be worked out alone: {e}", where=f"{where}:{node.lineno}", hint=hint) from e
    if lacking := [n for n in LITERALS if n not in out]:
        raise ConfigError(f"has no {', '.join(lacking)}", where=where, hint="docs/architecture.md lists what a kernel file holds")
    for name, right in (("SIZES", _are_words(out["SIZES"])), ("PARAMETERS", _are_rows(out["PARAMETERS"], _are_words)), ("FORMS", _are_rows(out["FORMS"], _is_mapping))):
        if not right:
            raise ConfigError(f"{name} cannot be {out[name]!r}", where=where, hint=SHAPES[name])
    return out


def _are_words(v: Any) -> bool:
    return isinstance(v, tuple | list) and bool(v) and all(isinstance(x, str) for x in v)


def _is_mapping(v: Any) -> bool:
    return isinstance(v, dict)


def _are_rows(v: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(v, dict) and bool(v) and all(isinstance(k, str) and holds(x) for k, x in v.items())


def _check_parameters(sizes: tuple[str, ...], parameters: Mapping[str, tuple[str, ...]], where: str) -> None:
    set_twice = [s for s in sizes if sum(s in group for group in parameters.values()) != 1]
    strange = sorted({s for group in parameters.values() for s in group} - set(sizes))
    if set_twice or strange:
        raise ConfigError(
            f"PARAMETERS must set each of SIZES once; wrong: {', '.join([*set_twice, *strange])}", where=where,
            hint='PARAMETERS = {"n": ("q_len", "kv_len")} sets two sizes at once',
        )
