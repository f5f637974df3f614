"""What each thread and stream is for, in a word and in a label for reading."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from perfscope.ingest.classify import HostClass
from perfscope.ingest.collect import FileFacts
from perfscope.ingest.string_table import Lanes
from perfscope.ingest.summary import Lane


def describe_lanes(
    facts: FileFacts,
    lanes: Lanes,
    main: int | None,
    device_rows: npt.NDArray[np.int64],
    comm_rows: npt.NDArray[np.int64],
) -> list[Lane]:
    """Every lane with rows, hosts first.

    Args:
        main: number of the main thread's lane.
        device_rows, comm_rows: per lane, its device rows and those of them that communicate.
    """
    lanes_found = []
    num_backends = num_autograd = 0
    for number, (owner, lane) in enumerate(lanes.keys):
        if lanes.is_device[number]:
            if number < len(device_rows) and device_rows[number]:
                comm = 2 * comm_rows[number] > device_rows[number]
                label = f"stream {lane}" + (" (communication)" if comm else "")
                lanes_found.append(Lane(device=owner, lane=lane, role="stream", label=label))
            continue
        counts = facts.host_codes[number] if number < len(facts.host_codes) else np.zeros(len(HostClass))
        if not counts.any():
            continue
        if number == main:
            role, label = "main", "main thread"
        elif 2 * counts[HostClass.COMM] > counts.sum():
            num_backends += 1
            role, label = "backend", f"communication thread {num_backends}"
        elif counts[HostClass.WRAPPER] or counts[HostClass.NODE]:
            num_autograd += 1
            role, label = "autograd", f"autograd thread {num_autograd}"
        else:
            role, label = "worker", lanes.labels.get(number, f"thread {lane}")
        lanes_found.append(Lane(device=-1, lane=lane, role=role, label=label))
    return sorted(lanes_found, key=lambda entry: (entry.device >= 0, entry.role != "main", entry.device))
