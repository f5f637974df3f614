"""One rank of several bench runs, one after the other: `wire_cases.py OUT_DIR CONFIG_JSON...`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from perfscope.runners.config import BenchConfig
from perfscope.runners.world import open_world
from tests.runners.training import train_here


def main(out: Path, configs: list[BenchConfig]) -> None:
    world = open_world(configs[0])
    for number, config in enumerate(configs):
        outcome = train_here(world, config).as_json()
        (out / f"{number}-{world.rank}.json").write_text(json.dumps(outcome))
    hosts = world.peers.gather(os.uname().nodename)
    if hosts is not None:
        (out / "hosts.json").write_text(json.dumps(hosts))
    world.peers.barrier()
    world.peers.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [BenchConfig.from_json(text) for text in sys.argv[2:]])
