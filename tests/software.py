"""A site's software: a module command whose compilers are this machine's under another version, as Anvil and Delta name them."""

from pathlib import Path
from shutil import which

MODULES = """module() {{
    case $1 in
    reset) export LOADEDMODULES= ;;
    load)
        case $2 in
        modtree/cpu | modtree/gpu) ;;
        gcc/* | cuda/*) [ -d "{place}/$2" ] || {{ echo "Lmod has detected an error: unknown module $2" >&2; return 0; }}
               export PATH="{place}/$2:$PATH" ;;
        *) echo "Lmod has detected an error: unknown module $2" >&2; return 0 ;;
        esac
        export LOADEDMODULES="$LOADEDMODULES:$2" ;;
    esac
}}
"""
COMPILER = '#!/bin/sh\n[ "$1" = --version ] && {{ echo "{name} (GCC) {version}"; exit 0; }}\nexec /usr/bin/{name} "$@"\n'
VERSIONS = ("11.2.0", "11.4.0")
CUDA = {"11.8.0": "11.8", "12.0.1": "12.0"}
NVCC = '#!/bin/sh\n[ "$1" = --version ] && {{ echo "Cuda compilation tools, release {version}, V{version}.1"; exit 0; }}\nexec {nvcc} "$@"\n'


def install(place: Path) -> dict[str, str]:
    """Make it below `place`; what must be in the environment for it to be found."""
    (place / "init").mkdir(parents=True)
    (place / "init" / "bash").write_text(MODULES.format(place=place))
    for version in VERSIONS:
        compilers(place / "gcc" / version, version)
    for module, version in CUDA.items():
        program(place / "cuda" / module / "nvcc", NVCC.format(version=version, nvcc=which("nvcc") or "false"))
    return {"MODULESHOME": str(place)}


def compilers(place: Path, version: str) -> None:
    """gcc and gfortran that say another version."""
    for name in ("gcc", "gfortran"):
        program(place / name, COMPILER.format(name=name, version=version))


def program(place: Path, text: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(0o755)
