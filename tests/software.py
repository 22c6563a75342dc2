"""A site's software: a module command whose compilers are this machine's under another version, as Anvil and Delta name them."""

from pathlib import Path

MODULES = """module() {{
    case $1 in
    reset) export LOADEDMODULES= ;;
    load)
        case $2 in
        modtree/cpu | modtree/gpu) ;;
        gcc/*) [ -d "{place}/$2" ] || {{ echo "Lmod has detected an error: unknown module $2" >&2; return 0; }}
               export PATH="{place}/$2:$PATH" ;;
        *) echo "Lmod has detected an error: unknown module $2" >&2; return 0 ;;
        esac
        export LOADEDMODULES="$LOADEDMODULES:$2" ;;
    esac
}}
"""
COMPILER = '#!/bin/sh\n[ "$1" = --version ] && {{ echo "{name} (GCC) {version}"; exit 0; }}\nexec /usr/bin/{name} "$@"\n'
VERSIONS = ("11.2.0", "11.4.0")


def install(place: Path) -> dict[str, str]:
    """Make it below `place`; what must be in the environment for it to be found."""
    (place / "init").mkdir(parents=True)
    (place / "init" / "bash").write_text(MODULES.format(place=place))
    for version in VERSIONS:
        compilers(place / "gcc" / version, version)
    return {"MODULESHOME": str(place)}


def compilers(place: Path, version: str) -> None:
    """gcc and gfortran that say another version."""
    place.mkdir(parents=True, exist_ok=True)
    for name in ("gcc", "gfortran"):
        program = place / name
        program.write_text(COMPILER.format(name=name, version=version))
        program.chmod(0o755)
