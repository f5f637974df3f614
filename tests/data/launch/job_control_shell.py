"""A job-control shell in one page: job_control_shell.py FD COMMAND... with a terminal on stdin.

Runs COMMAND as the foreground job. When it stops, prints "stopped" and continues it in the foreground
after a byte on FD; at the end prints "exit CODE".
"""

import os
import signal
import sys
from fcntl import ioctl
from termios import TIOCSCTTY

ioctl(0, TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ, setpgroup=0, setsigdef=[signal.SIGTTOU])
os.tcsetpgrp(0, job)
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        break
    print("stopped", flush=True)
    os.read(int(sys.argv[1]), 1)
    os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)
os.tcsetpgrp(0, os.getpgrp())
print("exit", os.waitstatus_to_exitcode(status), flush=True)
