"""torchrun without its walls of text: `python -m perfscope.runners.starting.elastic [OPTIONS] -m MODULE ...`.

Takes torchrun's options. Ranks speak for themselves. When one fails, one line says which, and this process
ends with that rank's exit code (128+N for signal N). However it ends, SIGKILL included, no rank stays behind.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence

from perfscope.runners.starting.endings import RankEnding, cause, say
from perfscope.runners.starting.guard import run_guarded

_SHUTDOWN_S = "5"  # from SIGTERM to SIGKILL; torchrun's default is 30
_MONITOR_S = "0.1"


def main(arguments: Sequence[str]) -> int:
    """torchrun with these arguments; the code to exit with."""
    return run_guarded(lambda mask: _launch(arguments, mask))


def _launch(arguments: Sequence[str], mask: frozenset[int]) -> int:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # torchrun has handlers of its own
    _quieten()
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    defaults = ("--monitor-interval", _MONITOR_S, "--shutdown-timeout", _SHUTDOWN_S)
    try:
        run.run(run.parse_args([*defaults, *arguments]))  # what is given later wins
    except ChildFailedError as error:
        failed = cause([RankEnding(rank, failure.exitcode) for rank, failure in error.failures.items()])
        if failed is None:
            return 1
        say(f"{failed}; all ranks have ended")
        return failed.exit_code
    except SignalException as error:
        return 128 + int(error.sigval)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - torchrun's rendezvous fails in many ways; each is one line
        say(f"the ranks could not be started: {type(error).__name__}: {' '.join(str(error).split())}")
        return 1
    return 0


def _quieten() -> None:
    """What torch's launcher logs before and after is what the one line says. Ranks are not silenced."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun would set it, too, and explain it in six lines
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
