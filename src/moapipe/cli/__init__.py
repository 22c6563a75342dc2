"""In: the command line. Out: one verb run, and an exit code: 0 done, 1 the result is bad, 2 an error that the user can mend, 130 Ctrl-C,
143 SIGTERM, 129 a closed terminal.

A verb is a function of a module of this package, and a row of VERBS. Only the verb that was asked for is imported: the rooms
behind all of them (xarray, altair, torch, sympy) take seconds to load, and a workflow starts a process for every job.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer

from moapipe.errors import MoapipeError
from moapipe.lab import tether

INTERRUPTED = 130
ENDINGS = (signal.SIGTERM, signal.SIGHUP)       # of a run that was killed or cancelled, of a terminal that was closed
ENDS: dict[object, str] = {INTERRUPTED: "stopped by Ctrl-C", **{128 + s: f"ended by {s.name}" for s in ENDINGS}}
PANELS = ("stages, from a definition to the archive", "looking at things")


@dataclass(frozen=True)
class Verb:
    """A verb: the module of this package that holds its function, one line of help, and the panel of `--help` it stands in."""

    module: str
    text: str
    panel: str = PANELS[0]


VERBS: dict[str, Verb] = {
    "derive": Verb("text", "write a build's derivation, costs, source and manifest"),
    "build": Verb("library", "compile a derived source and check its inner loops"),
    "validate": Verb("library", "check a build against extended precision"),
    "emulate": Verb("library", "run a text for a GPU on the processor: numbers, races, bounds, counts"),
    "calibrate": Verb("measurement", "measure this machine's rates"),
    "predict": Verb("measurement", "predict a group's times from counts and rates, before measuring"),
    "bench": Verb("measurement", "measure a group: every variant, language and PyTorch in turn"),
    "collect": Verb("result", "join an experiment's records and predictions into one dataset"),
    "chart": Verb("result", "draw every chart of an experiment's dataset"),
    "evidence": Verb("result", "say what is known of an experiment's texts for GPUs, and which ran on one"),
    "archive": Verb("result", "pack an experiment into a checksummed archive with a page, or verify one"),
    "table": Verb("result", "print an experiment's table and the path of its page", PANELS[1]),
    "bars": Verb("result", "compare an experiment's ratios with the floors that we owe", PANELS[1]),
    "join": Verb("result", "put datasets of several machines or archives into one", PANELS[1]),
    "show": Verb("text", "print a stage of a build: definitions, dnf, onf, cost, source, pair, derivation", PANELS[1]),
    "published": Verb("text", "hold our predictions against the papers' own measurements", PANELS[1]),
    "explain": Verb("explanation", "say why arrangements of threads and pages are slow", PANELS[1]),
    "call": Verb("library", "run a stage of a kernel on your own arrays", PANELS[1]),
    "doctor": Verb("host", "say what this machine has, and what is wrong with it", PANELS[1]),
}


def _function(name: str, chosen: str | None) -> Callable[..., Any]:
    """The verb's function when it was asked for; otherwise a stand-in that `--help` can list."""
    if name != chosen:
        return lambda: None
    function: Callable[..., Any] = getattr(import_module(f"moapipe.cli.{VERBS[name].module}"), name)
    return function


def application(chosen: str | None) -> typer.Typer:
    """The command line with the one verb `chosen` for real."""
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True,
        help="Transformer kernels derived from Mathematics-of-Arrays definitions, predicted, measured and explained.",
    )
    app.callback()(lambda: None)
    for name, verb in VERBS.items():
        help_text = None if name == chosen else f"{verb.text[0].upper()}{verb.text[1:]}."
        app.command(name, help=help_text, rich_help_panel=verb.panel)(_function(name, chosen))
    return app


def _end(number: int, _: object) -> None:
    """Clear up before the end, and let nothing disturb that."""
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code. Unexpected exceptions keep their traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = next((w for w in words if not w.startswith("-")), None)
    for ending in ENDINGS:
        if signal.getsignal(ending) is signal.SIG_DFL:      # nohup ignores one
            signal.signal(ending, _end)
    tether.to_run(os.environ)
    try:
        application(verb if verb in VERBS else None)(words, prog_name="moapipe", standalone_mode=True)
    except MoapipeError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:  # typer makes an exit with code 130 of Ctrl-C
        code = end.code if isinstance(end, SystemExit) else INTERRUPTED
        if code not in ENDS:
            raise
        print(f"moapipe {verb}: {ENDS[code]}; finished results are kept, nothing is half-written", file=sys.stderr)
        sys.exit(code)
