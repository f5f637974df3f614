"""torchrun with short error output: `python -m perfscope.runners.starting.elastic [OPTIONS] -m MODULE ...`.

Takes torchrun's options. Ranks print their own output. When one fails, one line says which, and this process
ends with that rank's exit code (128+N for signal N). However it ends, SIGKILL included, no rank stays behind.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from perfscope.runners.starting.endings import RankEnding, cause, say, say_silent, silent
from perfscope.runners.starting.guard import run_guarded

_SHUTDOWN_S = 5  # from SIGTERM to SIGKILL; torchrun's default is 30
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

    ended = _stop_soon()

    defaults = ("--monitor-interval", _MONITOR_S, "--shutdown-timeout", str(_SHUTDOWN_S))
    try:
        run.run(run.parse_args([*defaults, *arguments]))  # what is given later wins
    except ChildFailedError as error:
        endings = [
            RankEnding(rank, failure.exitcode, was_stopped=failure.local_rank not in ended)
            for rank, failure in error.failures.items()
        ]
        failed = cause(endings)
        if failed is None:
            return 1
        unheard = silent(endings)
        say(f"{say_silent(unheard) if unheard else failed}; all ranks have ended")
        return failed.exit_code
    except SignalException as error:
        return 128 + int(error.sigval)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - torchrun's rendezvous fails in many ways; each is one line
        say(f"the ranks could not be started: {type(error).__name__}: {' '.join(str(error).split())}")
        return 1
    return 0


def _stop_soon() -> set[int]:
    """Have torch's launcher wait _SHUTDOWN_S, not 30 s, for ranks that outlive one that failed.

    It has no option for that case, only for its own end by a signal.

    Returns:
        Local ranks that had ended when it began to stop the others; filled in while it runs.
    """
    from torch.distributed.elastic.multiprocessing.api import PContext

    ended: set[int] = set()
    closed: list[Any] = []
    close = PContext.close

    def close_soon(context: Any, death_sig: signal.Signals | None = None, timeout: int = _SHUTDOWN_S) -> None:
        if context not in closed:  # it is closed once more when all have ended
            closed[:] = [context]
            handlers = getattr(context, "subprocess_handlers", {})
            ended.clear()  # of ranks that were started again
            ended.update(rank for rank, handler in handlers.items() if handler.proc.poll() is not None)
        close(context, death_sig, min(timeout, _SHUTDOWN_S))

    setattr(PContext, "close", close_soon)  # noqa: B010 - this process has no other use for torch
    return ended


def _quieten() -> None:
    """What torch's launcher logs before and after is what the one line says. Ranks are not silenced."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun would set it, too, and explain it in six lines
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
