"""A training that takes no time: leaves in the run directory what the probe would leave of 60 steps.

python stand_in.py MS [--spread S] [--fail CODE] [--sleep S]: p10 near MS milliseconds, the same noise on both sides.
"""

import argparse
import json
import os
import random
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("ms", type=float)
parser.add_argument("--spread", type=float, default=0.005)
parser.add_argument("--fail", type=int, default=0)
parser.add_argument("--sleep", type=float, default=0.0)
args = parser.parse_args()

time.sleep(args.sleep)
if args.fail:
    print("Traceback (most recent call last):\nRuntimeError: out of luck")
    sys.exit(args.fail)
place = os.path.join(os.environ["PERFSCOPE_RUN_DIR"], "ranks", "0")
os.makedirs(place)
draw = random.Random()
level = args.ms * 1e6 * draw.gauss(1.0, args.spread)
now = time.monotonic_ns()
lines = [json.dumps({"columns": ["step", "start_ns", "dur_ns", "window", "input_ns", "samples"]})]
for step in range(60):
    duration = round(level * draw.uniform(1.0, 1.05))
    lines.append(json.dumps([step, now, duration, -1, 100_000, 32]))
    now += duration
with open(os.path.join(place, "steps.jsonl"), "w") as file:
    file.write("\n".join(lines) + "\n")
with open(os.path.join(place, "rank.json"), "w") as file:
    meta = {"schema_version": 1, "rank": 0, "local_rank": 0, "world_size": 1, "host": os.uname().nodename}
    meta.update(
        pid=os.getpid(), python="3.11.7", framework={"name": "torch", "version": "2.13.0"}, device="cpu"
    )
    meta.update(anchors=[[time.monotonic_ns(), time.time_ns()]], num_steps=60, finished=True, notes=[])
    meta.update(memory={"peak_rss_bytes": 500_000_000, "peak_device_bytes": None})
    json.dump(meta, file)
