"""Keeps perfscope's own frames out of the tracebacks of the training's errors."""

from __future__ import annotations


def hide_frame(error: BaseException) -> None:
    """Take the frame of the caller, who has just caught `error`, out of its traceback; `raise` it then.

    Up to Python 3.10 a bare `raise` puts the frame back: there it stays.
    """
    traceback = error.__traceback__
    if traceback is not None and traceback.tb_next is not None:
        error.__traceback__ = traceback.tb_next
