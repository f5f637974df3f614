"""Print the signal mask it was started with, then every signal received, until SIGUSR2; exits with code 9.

Reads signals with sigwait, so each delivery is one line: a signal delivered twice shows twice.
SIGTSTP and SIGCONT keep their normal effect.
"""

import os
import signal
import sys

print("masked", sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())), flush=True)
watched = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN}
signal.pthread_sigmask(signal.SIG_BLOCK, watched)
print("ready", os.getpid(), flush=True)
while True:
    number = signal.sigwait(watched)
    print("got", signal.Signals(number).name, flush=True)
    if number == signal.SIGUSR2:
        sys.exit(9)
