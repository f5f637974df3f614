"""The program `perfscope`, also as ``python -m perfscope``."""

import sys

# They end in an order of their own: connections, MPI, devices.
_FOREIGN = ("distributed", "mpi4py", "torch", "tensorflow", "jax", "mxnet", "paddle")


def main() -> None:
    """Entry point. Everything else is imported inside, so that Ctrl-C while loading is no stack trace."""
    try:
        from perfscope.lean_imports import hide_unused

        hide_unused()
        from perfscope.cli.main import main as run
        from perfscope.cycle_collector import in_one_command

        in_one_command()
        run()
    except KeyboardInterrupt:
        sys.stderr.write("perfscope: interrupted\n")
        sys.exit(130)


def program() -> None:
    """`main` as a process of its own, which is over with it."""
    try:
        main()
    except SystemExit as stop:
        if isinstance(stop.code, int):
            _leave(stop.code)
        raise


def _leave(code: int) -> None:
    """Ends the process without freeing its modules and objects one by one: 15 ms.

    Returns where Python is to end it: where threads run, output cannot be written, or others have to finish.
    """
    import atexit
    import os
    import threading

    if threading.active_count() > 1 or any(name in sys.modules for name in _FOREIGN):
        return
    atexit._run_exitfuncs()  # as Python would first; these may print
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # closed, or a full disk
        return
    os._exit(code)


if __name__ == "__main__":
    program()
