"""Steps without a framework: starts at once, so that what Slurm does can be tried many times.

STEPS, PAUSE: number of steps and seconds between them. FAIL: this task exits with 3 at step
AT (the middle). ORPHAN: this task kills the wrapper above it then, and goes on.
"""

import os
import signal
import sys
import time

import perfscope


def main() -> None:
    task = os.environ.get("SLURM_PROCID", "0")
    steps = int(os.environ.get("STEPS", "10"))
    at = int(os.environ.get("AT", steps // 2))
    for step in range(steps):
        perfscope.step(samples=4)
        time.sleep(float(os.environ.get("PAUSE", "0.02")))
        if step == at:
            if os.environ.get("FAIL") == task:
                sys.exit(3)
            if os.environ.get("ORPHAN") == task:
                os.kill(os.getppid(), signal.SIGKILL)
    perfscope.step()
    print("trained", task, flush=True)


if __name__ == "__main__":
    main()
