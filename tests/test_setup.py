"""setup.sh on machines that lack something: it installs as root after saying so, and tells everybody else what to do."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("bash", "env", "dirname", "touch", "cat", "mkdir", "readlink", "rm", "printf")
COMPILERS = ("gcc", "gfortran", "lstopo-no-graphics", "numactl")
PYTHON = f'#!/bin/sh\necho "$@" >> calls\ncase "$*" in *"venv --clear"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; echo "$PWD/.venv" > .venv/bin/activate;; *"-m pip install"*) exit $PIP;; esac\nexec {sys.executable} -c pass\n'


@dataclass(frozen=True)
class Machine:
    """A folder with setup.sh and a bin/ that is all that PATH has."""

    path: Path

    def has(self, name: str, text: str = "#!/bin/sh\nexit 0\n") -> None:
        program = self.path / "bin" / name
        program.write_text(text)
        program.chmod(0o755)

    def lacks(self, *names: str) -> None:
        for name in names:
            (self.path / "bin" / name).unlink()

    def setup(self, pip: int = 0, **environment: str) -> subprocess.CompletedProcess:
        env = {"PATH": str(self.path / "bin"), "HOME": str(self.path), "PIP": str(pip), **environment}
        return subprocess.run(["./setup.sh"], cwd=self.path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

    def calls(self) -> str:
        log = self.path / "calls"
        return log.read_text() if log.is_file() else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One that has everything, used by somebody who is not root."""
    out = Machine(tmp_path)
    (tmp_path / "bin").mkdir()
    shutil.copy2(ROOT / "setup.sh", tmp_path)
    for name in NEEDED:
        if found := shutil.which(name):
            (tmp_path / "bin" / name).symlink_to(found)
    for name in COMPILERS:
        out.has(name)
    out.has("id", "#!/bin/sh\necho 1000\n")
    out.has("cp", f"#!/bin/sh\nexec {shutil.which('cp')} \"$@\"\n")
    out.has("python3", PYTHON)
    return out


def root(machine: Machine) -> None:
    """Root, with an apt-get that writes down what it is asked and makes the program of the same name."""
    machine.has("id", "#!/bin/sh\necho 0\n")
    machine.has("apt-get", f'#!/bin/sh\necho "apt-get $@" >> calls\nfor p in "$@"; do case $p in gfortran|gcc) {shutil.which("cp")} bin/numactl bin/$p;; esac; done\n')


def test_a_whole_machine_gets_its_environment(machine: Machine) -> None:
    done = machine.setup()
    assert done.returncode == 0, done.stdout
    assert "making .venv with" in done.stdout and "constraints.txt" in done.stdout
    assert "-c constraints.txt -e .[test]" in machine.calls()
    assert (machine.path / ".venv/.ready").is_file()


def test_a_second_time_keeps_the_environment(machine: Machine) -> None:
    machine.setup()
    done = machine.setup()
    assert done.returncode == 0
    assert "making .venv" not in done.stdout
    assert machine.calls().count("venv --clear") == 1


def test_an_environment_that_was_copied_here_is_made_anew(machine: Machine) -> None:
    machine.setup()
    (machine.path / ".venv/bin/activate").write_text("/elsewhere/.venv")
    assert "making .venv" in machine.setup().stdout


def test_an_environment_that_is_a_link_is_made_anew_and_the_other_stays(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / ".venv"
    (other / "bin").mkdir(parents=True)
    (other / "bin/activate").write_text(str(other))
    (machine.path / ".venv").symlink_to(other)
    done = machine.setup()
    assert done.returncode == 0 and f"is a link to {other}" in done.stdout
    assert (other / "bin/activate").is_file() and not (machine.path / ".venv").is_symlink()


def test_an_environment_is_kept_where_the_path_has_a_link(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert machine.setup().returncode == 0
    here = tmp_path_factory.mktemp("link") / "here"
    here.symlink_to(machine.path)
    assert "making" not in Machine(here).setup(PWD=str(here)).stdout


@pytest.mark.parametrize("mine", [True, False])
def test_make_sets_up_where_the_environment_is_anothers(mine: bool, tmp_path: Path) -> None:
    for name in ("Makefile", "setup.sh", "constraints.txt", "pyproject.toml"):
        shutil.copy2(ROOT / name, tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text(f"VIRTUAL_ENV={tmp_path if mine else '/elsewhere'}/.venv\n")
    (tmp_path / ".venv/.ready").touch()
    told = subprocess.run(["make", "-n", "setup"], cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert ("setup.sh" in told) != mine, told


@pytest.mark.parametrize("program", COMPILERS)
def test_without_root_it_lists_what_to_install_or_load(program: str, machine: Machine) -> None:
    machine.lacks(program)
    done = machine.setup()
    assert done.returncode == 1
    assert all(word in done.stdout for word in (program, "sudo apt-get install", "dnf install", "module load", "MOAPIPE_SETUP=python"))
    assert not (machine.path / ".venv").exists()


def test_root_installs_after_saying_so(machine: Machine) -> None:
    root(machine)
    machine.lacks("gcc", "gfortran")
    done = machine.setup()
    assert done.returncode == 0, done.stdout
    assert "installing with apt-get, as root: gcc libc6-dev gfortran" in done.stdout
    assert "apt-get -qq install -y --no-install-recommends gcc libc6-dev gfortran" in machine.calls()


def test_nothing_is_installed_when_nothing_is_missing(machine: Machine) -> None:
    root(machine)
    assert machine.setup().returncode == 0
    assert "apt-get" not in machine.calls()


def test_one_can_go_on_without_the_programs(machine: Machine) -> None:
    machine.lacks("gfortran")
    assert machine.setup(MOAPIPE_SETUP="python").returncode == 0


@pytest.mark.parametrize("python", ("#!/bin/sh\nexit 1\n", None), ids=("too old", "none"))
def test_without_a_new_python_it_says_how_to_get_one(python: str | None, machine: Machine) -> None:
    machine.lacks("python3")
    if python:
        machine.has("python3", python)
    done = machine.setup()
    assert done.returncode == 1
    assert "no Python 3.11 or newer" in done.stdout and "PYTHON=" in done.stdout


def test_one_can_name_the_python(machine: Machine) -> None:
    machine.lacks("python3")
    machine.has("snake", PYTHON)
    assert machine.setup(PYTHON="snake").returncode == 0


def test_a_failing_pip_is_not_ready(machine: Machine) -> None:
    done = machine.setup(pip=1)
    assert done.returncode == 1
    assert "PIP_INDEX_URL" in done.stdout
    assert not (machine.path / ".venv/.ready").exists()
