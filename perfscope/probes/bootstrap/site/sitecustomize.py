"""Loads the perfscope agent into a Python process that `perfscope run` started, then steps aside.

This directory stands first on PYTHONPATH, so `site` imports this file in every Python process
below the command. It must be parseable by any Python (other tools may start an old one), cost
next to nothing, never print, and leave the process as it would be without it: its directory
leaves sys.path again, and the user's own `sitecustomize`, which this one hides, is imported in
its place (or the import fails as it would have failed, which `site` expects).
"""

import os
import sys


def _note_failure(error):
    """One line in the run directory; nothing at all where even that fails."""
    try:
        path = os.path.join(os.environ["PERFSCOPE_RUN_DIR"], "boot-errors.txt")
        line = "pid %d: %s: %s\n" % (os.getpid(), type(error).__name__, " ".join(str(error).split())[:500])
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            # A fault in every process of a large job must not fill the disk.
            if os.fstat(descriptor).st_size < 65536:
                os.write(descriptor, line.encode("utf-8", "backslashreplace"))
        finally:
            os.close(descriptor)
    except Exception:  # noqa: BLE001 - there is no channel left; training goes first
        return


def _load_agent():
    """Run the agent named by PERFSCOPE_AGENT once. A vanished file means perfscope was removed: silence."""
    path = os.environ.get("PERFSCOPE_AGENT")
    name = "_perfscope_agent"
    if not path or name in sys.modules or sys.version_info < (3, 8) or not os.path.isfile(path):
        return
    # What importlib.util re-exports; importing that would cost more than the rest of this file.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import SourceFileLoader, spec_from_file_location

    loader = SourceFileLoader(name, path)
    spec = spec_from_file_location(name, path, loader=loader)

    agent = module_from_spec(spec)
    sys.modules[name] = agent
    try:
        loader.exec_module(agent)
        agent.start()
    except BaseException:
        sys.modules.pop(name, None)
        raise


def _step_aside():
    """Take this directory off sys.path and let the import system find what it would have found."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    if sys.modules.get("sitecustomize") is not None and __name__ == "sitecustomize":
        del sys.modules["sitecustomize"]


try:
    _load_agent()
except Exception as _error:  # noqa: BLE001 - whatever fails here must not reach the training
    _note_failure(_error)

_step_aside()
import sitecustomize  # noqa: E402, F401 - the user's own; ImportError is the normal case and `site` expects it
