"""mpiexec of the Hydra family: what is passed on by itself, what needs a word, and where the program is."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from perfscope.launch.environment import ProbeOptions, make_injection
from perfscope.launch.mpi import Rewritten, pass_environment, program_index
from perfscope.launch.plan import CommandContext

HYDRA = "HYDRA build details:\n    Version: 5.0.2\n"
INJECTION = make_injection(Path("/run"), ProbeOptions(), {})


def passed(command: str) -> Rewritten:
    context = CommandContext(environment={"PATH": "/bin"}, injection=INJECTION, mpi_version=lambda _: HYDRA)
    return pass_environment(tuple(shlex.split(command)), context)


def test_a_pythonpath_of_the_users_own_stays_behind_ours() -> None:
    for option in ("-genv", "-env"):
        found = passed(f"mpiexec {option} PYTHONPATH /mine -n 2 python t.py -genv PYTHONPATH /not-an-option")
        assert found.argv == (
            *("mpiexec", option, "PYTHONPATH", f"{INJECTION.site_dir}:/mine", "-n", "2", "python", "t.py"),
            *("-genv", "PYTHONPATH", "/not-an-option"),
        )
        assert found.warnings == ()


def test_a_list_of_variables_gets_ours() -> None:
    found = passed("mpiexec -genvnone -genvlist PATH,PYTHONPATH -n 2 python t.py")
    assert found.argv[2:4] == ("-genvlist", ",".join(["PATH", "PYTHONPATH", *INJECTION.names[1:]]))
    assert found.warnings == ()
    assert "PERFSCOPE_*" in passed("mpiexec -genvnone -n 2 python t.py").warnings[0]


@pytest.mark.parametrize(
    "options",
    [
        "-launcher ssh -launcher-exec /bin/sh -hosts a,b -n 2",
        "-bootstrap-exec /bin/sh -ppn 1 -n 2",
        "--display map --runtime-options x -np 2",
    ],
)
def test_an_executable_that_starts_daemons_is_not_the_program(options: str) -> None:
    argv = shlex.split(f"mpiexec {options} python t.py")
    assert argv[program_index(argv, {"PATH": "/bin"})] == "python"
