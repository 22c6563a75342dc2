"""In: a YAML file and the pydantic model that says what may stand in it. Out: the checked, frozen model.

A key that nobody reads is an error, never ignored; so is a key given twice. Messages name the file, the key and the nearest
word that would have been right.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, RootModel, ValidationError

from moapipe.errors import ConfigError

SHOWN = 5  # problems of one file that a message lists


class Strict(BaseModel):
    """Base of every model of a YAML file: unknown keys are refused, instances are frozen, numbers are not made of strings."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Model = TypeVar("Model", bound=BaseModel)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml, where there is one, is ten times as fast
    """Safe YAML whose mappings refuse a repeated key. `name` is what messages call the file."""

    name: str


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key, where = loader.construct_object(key_node, deep=True), f"{loader.name}:{key_node.start_mark.line + 1}"
        if not isinstance(key, Hashable):
            raise ConfigError(f"{key!r} is no key", where=where, hint="a key is one word")
        if key in out:
            raise ConfigError(f"key {key!r} stands twice", where=where, hint="keep one of the two")
        out[key] = loader.construct_object(value_node, deep=True)
    return out


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path, shown: str | None = None) -> Any:
    """The data of a YAML file; `shown` is the name that messages use. ConfigError: no such file, no UTF-8, or no YAML."""
    name = shown or str(path)
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"cannot read it: {e.strerror}", where=name, hint=_neighbours(path)) from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"this is no text in UTF-8: {e.reason} at byte {e.start}", where=name, hint="save it as UTF-8") from e
    try:
        loader = _Loader(source)
    except yaml.YAMLError as e:
        raise ConfigError(f"this is not YAML: {getattr(e, 'reason', None) or e}", where=name, hint="it holds characters that no text has") from e
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
        raise ConfigError(f"no {what} {word!r}", where=where, hint=suggestion(word, list(dict.fromkeys(known))))
    return word


def parse(model: type[Model], data: Any, where: str) -> Model:
    """`data` checked against `model`, as JSON is: a list is a tuple, but "8" and true are no numbers. ConfigError lists up to SHOWN
    problems, each with its key."""
    if strange := next(_strange(data), None):
        raise ConfigError(f"key {strange} is no word", where=where, hint="put it in quotes if it is meant to be one")
    try:
        return model.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as e:
        problems = _problems(model, e)
        more = f"\n  and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        first, *others = problems[:SHOWN]
        text = first[0] + "".join(f"\n  also {m}" for m, _ in others) + more
        raise ConfigError(text, where=where, hint=first[1]) from e


def _strange(data: Any) -> Iterator[str]:
    """The keys that are no text, with the keys around them."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        if isinstance(data, dict) and not isinstance(key, str):
            yield repr(key)
        yield from (f"{key}.{inner}" for inner in _strange(value))


def _problems(model: type[BaseModel], e: ValidationError) -> list[tuple[str, str]]:
    """(message, hint) of each key that is wrong, unknown ones first: a misspelt key is also a missing one. What a value could have
    been instead is one problem, and a list is not also too short because of what is wrong inside it."""
    found: dict[tuple[int | str, ...], list[Any]] = {}
    for p in sorted(e.errors(), key=lambda p: p["type"] != "extra_forbidden"):
        found.setdefault(tuple(x for x in p["loc"] if not _is_choice(x)), []).append(p)
    inner = {loc[:n] for loc in found for n in range(len(loc))}
    return [_problem(model, loc, ps) for loc, ps in found.items() if loc not in inner or ps[0]["type"] != "too_short"]


def _is_choice(part: int | str) -> bool:
    """Pydantic's names for the alternatives of a union, which stand between keys."""
    return isinstance(part, str) and (part in ("int", "float", "str", "bool") or part.startswith("constrained-") or part.endswith("]"))


def load(model: type[Model], path: Path, shown: str | None = None) -> Model:
    """A YAML file as `model`."""
    return parse(model, read_yaml(path, shown), shown or str(path))


def _problem(model: type[BaseModel], loc: tuple[int | str, ...], ways: Sequence[Any]) -> tuple[str, str]:
    """(message, hint) of what pydantic says of one key; several where a union offers several ways."""
    key, p = ".".join(map(str, loc)) or "the file", ways[0]
    match p["type"]:
        case "extra_forbidden":
            return f"unknown key {key}", suggestion(str(loc[-1]), fields(model, loc[:-1]))
        case "missing":
            return f"key {key} is missing", f"add {loc[-1]}: …"
        case "literal_error" if len(ways) == 1:
            return f"{key}: {p['input']!r} is not allowed", f"expected {p['ctx']['expected']}"
        case _:
            return f"{key}: {', or '.join(dict.fromkeys(_plain(w['msg']) for w in ways))}; found {p['input']!r}", _shape_hint(p, loc)


def _plain(message: str) -> str:
    """Pydantic's words without names of Python's types."""
    said = message.replace("Input should be", "should be").replace(" or instance of", " of").replace("a valid tuple", "a list").replace("a valid array", "a list")
    return said.replace("valid dictionary", "mapping").replace("a valid object", "a mapping").replace("an object", "a mapping").replace("Tuple", "a list").replace("Dictionary", "a mapping")


def _shape_hint(p: Any, loc: tuple[int | str, ...]) -> str:
    if p["type"] in ("tuple_type", "list_type"):
        return f"write {loc[-1]}: [{p['input']}]" if not isinstance(p["input"], dict) else f"write {loc[-1]} as a list"
    return "a number stands without quotes" if p["type"] in ("int_type", "float_type") and isinstance(p["input"], str) else ""


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
