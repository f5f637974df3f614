"""What holds for all tests."""

from __future__ import annotations

import signal

# Under nohup, or in the background of a script, these are ignored, and so they would be in every program that
# the tests start: tests of Ctrl-C and of a hang-up would then wait for something that cannot come.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
