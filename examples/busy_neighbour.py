"""Somebody else on your machine: keeps CPUs busy for a while, beside a training that should be alone.

python examples/busy_neighbour.py --after 6 --seconds 6 --cpus 1
"""

import argparse
import multiprocessing
import time


def burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--after", type=float, default=6.0, help="seconds before it starts")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds it lasts")
    parser.add_argument("--cpus", type=int, default=1, help="CPUs it takes")
    args = parser.parse_args()
    time.sleep(args.after)
    workers = [multiprocessing.Process(target=burn, args=(args.seconds,)) for _ in range(args.cpus)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
