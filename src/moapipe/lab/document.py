"""In: a YAML file and the pydantic model that says what may stand in it. Out: the checked, frozen model.

A key that nobody reads is an error, never ignored; so is a key given twice. Messages name the file, the key and the nearest
word that would have been right.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from moapipe.errors import ConfigError

SHOWN = 5  # problems of one file that a message lists


class Strict(BaseModel):
    """Base of every model of a YAML file: unknown keys are refused, instances are frozen, numbers are not made of strings."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


Model = TypeVar("Model", bound=BaseModel)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml, where there is one, is ten times as fast
    """Safe YAML whose mappings refuse a repeated key. `name` is what messages call the file."""

    name: str


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in out:
            raise ConfigError(f"key {key!r} stands twice", where=f"{loader.name}:{key_node.start_mark.line + 1}", hint="keep one of the two")
        out[key] = loader.construct_object(value_node, deep=True)
    return out


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path, shown: str | None = None) -> Any:
    """The data of a YAML file; `shown` is the name that messages use. ConfigError: no such file, or no YAML."""
    name = shown or str(path)
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"cannot read it: {e.strerror}", where=name, hint=_neighbours(path)) from e
    loader = _Loader(source)
    loader.name = name
    try:
        return loader.get_single_data()
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        raise ConfigError(f"this is not YAML: {getattr(e, 'problem', None) or e}", where=where, hint="check indentation, colons and quotes") from e
    finally:
        loader.dispose()


def _neighbours(path: Path) -> str:
    there = sorted(p.stem for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    return suggestion(path.stem, there)


def suggestion(word: str, known: Sequence[str]) -> str:
    """`did you mean 'x'?`, or the list of what is known."""
    close = get_close_matches(str(word), [str(k) for k in known], n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known: {', '.join(map(str, known))}" if known else ""


def choose(word: str, known: Sequence[str], what: str, where: str) -> str:
    """`word` when it is known; ConfigError with the nearest known word otherwise."""
    if word not in known:
        raise ConfigError(f"no {what} {word!r}", where=where, hint=suggestion(word, list(known)))
    return word


def parse(model: type[Model], data: Any, where: str) -> Model:
    """`data` checked against `model`. ConfigError lists up to SHOWN problems, each with its key."""
    try:
        return model.model_validate(data)
    except ValidationError as e:
        unknown_first = sorted(e.errors(), key=lambda p: p["type"] != "extra_forbidden")  # a misspelt key is also a missing one
        problems = [_problem(model, p) for p in unknown_first]
        more = f"\n  and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        first, *others = problems[:SHOWN]
        text = first[0] + "".join(f"\n  also {m}" for m, _ in others) + more
        raise ConfigError(text, where=where, hint=first[1]) from e


def load(model: type[Model], path: Path, shown: str | None = None) -> Model:
    """A YAML file as `model`."""
    return parse(model, read_yaml(path, shown), shown or str(path))


def _problem(model: type[BaseModel], p: Any) -> tuple[str, str]:
    """(message, hint) of one pydantic error."""
    loc = p["loc"]
    key = ".".join(map(str, loc)) or "the file"
    match p["type"]:
        case "extra_forbidden":
            return f"unknown key {key}", suggestion(str(loc[-1]), fields(model, loc[:-1]))
        case "missing":
            return f"key {key} is missing", f"add {loc[-1]}: …"
        case "literal_error":
            return f"{key}: {p['input']!r} is not allowed", f"expected {p['ctx']['expected']}"
        case _:
            return f"{key}: {p['msg']}, found {p['input']!r}", ""


def fields(annotation: Any, loc: Sequence[int | str]) -> list[str]:
    """Keys that are allowed at `loc` below a model, for the did-you-mean."""
    for part in loc:
        if isinstance(annotation, type) and issubclass(annotation, RootModel):
            annotation = annotation.model_fields["root"].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = annotation.model_fields.get(str(part))
            annotation = field.annotation if field else None
        else:
            parts = [a for a in get_args(annotation) if a not in (..., type(None))]
            annotation = parts[-1] if parts else None
    return list(annotation.model_fields) if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
