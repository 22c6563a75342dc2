#!/usr/bin/env bash
# Set up what a run needs and this machine lacks: system programs first, then .venv with the versions in constraints.txt.
# Called by `make`; safe to call again. PYTHON=/path/to/python chooses the interpreter; anything else is found.
set -euo pipefail
cd "$(dirname "$0")"

VENV=.venv
MIN="3.11"

# program, Debian package, what it is for
PROGRAMS="
gcc|gcc libc6-dev|compiles the C kernels and the timing driver
gfortran|gfortran|compiles the Fortran kernels
lstopo-no-graphics|hwloc-nox|reads the machine's cores, caches and memory nodes
numactl|numactl|places memory on machines with several memory nodes
"

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

install_packages() {
    say "installing with apt-get, as root: $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update || say "apt-get update failed; going on with the package lists that are here"
    apt-get -qq install -y --no-install-recommends "$@" >/dev/null || fail "apt-get could not install: $*"
}

is_there() {
    command -v "$1" >/dev/null && return 0
    [ "$1" = lstopo-no-graphics ] && command -v lstopo >/dev/null
}

system_programs() {
    local packages="" missing="" program package purpose
    while IFS='|' read -r program package purpose; do
        [ -z "$program" ] && continue
        is_there "$program" && continue
        packages="$packages $package"
        missing="$missing"$'\n'"    $program ($purpose)"
    done <<<"$PROGRAMS"
    [ -z "$packages" ] && return 0
    if can_install; then
        # word splitting is wanted: one argument a package
        # shellcheck disable=SC2086
        install_packages $packages
        return 0
    fi
    fail "these programs are missing:$missing" \
        "on Debian or Ubuntu:   sudo apt-get install$packages" \
        "on Fedora or Rocky:    sudo dnf install gcc gcc-gfortran hwloc numactl" \
        "on a cluster:          module load gcc hwloc numactl     (names differ; try: module spider gcc)" \
        "then start again. To go on without them: MOAPIPE_SETUP=python make run (cases that need them are reported as not built)"
}

is_new_enough() { "$1" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$MIN'.split('.'))))" 2>/dev/null; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3 python3.12 python3.13 python3.14}; do
        if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

# There, new enough, and made in this very place: the programs in a copied environment start the original's Python.
is_whole() {
    [ -x $VENV/bin/python ] && is_new_enough $VENV/bin/python && $VENV/bin/python -m pip --version >/dev/null 2>&1 &&
        [[ $(<$VENV/bin/activate) == *"$(pwd -P)/$VENV"* ]]
}

virtual_environment() {
    is_whole && return 0
    if [ -L $VENV ]; then
        say "$VENV is a link to $(readlink $VENV), whose programs start the moapipe of that place: taking the link away"
        rm $VENV
    fi
    local python
    python=$(find_python) || fail \
        "no Python $MIN or newer found (looked for: ${PYTHON:-python3.11 python3 python3.12 python3.13 python3.14})" \
        "install one (sudo apt-get install python3 python3-venv; on a cluster: module load python)," \
        "or name it: PYTHON=/path/to/python3 make run"
    if ! has_venv "$python"; then
        can_install || fail "$python cannot make virtual environments: sudo apt-get install python3-venv"
        install_packages python3-venv
        has_venv "$python" || fail "$python still cannot make virtual environments; name another one: PYTHON=/path/to/python3"
    fi
    say "making $VENV with $python ($("$python" -V))"
    "$python" -m venv --clear $VENV
}

python_packages() {
    say "installing the Python packages pinned in constraints.txt into $VENV (two to five minutes the first time)"
    $VENV/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]' ||
        fail "pip could not install the pinned packages; its message is above" \
            "behind a proxy or a mirror: set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL and start again"
}

[ "${MOAPIPE_SETUP:-all}" = python ] || system_programs
virtual_environment
python_packages
touch $VENV/.ready
say "ready"
