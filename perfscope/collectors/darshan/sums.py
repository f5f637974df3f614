"""Sums of one Darshan log by rank and module, and its slowest files. A script, for a process of its own.

    python sums.py PLAN     PLAN: JSON, {"path", "memory_bytes": at most}; prints one JSON object

Needs the package `darshan`, whose C library reads the log: a damaged one may end the process. Nothing of
perfscope is imported.
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from typing import Any

# Module -> prefix of its counters. MPI-IO calls POSIX or the file system beneath it.
MODULES = {"POSIX": "POSIX", "STDIO": "STDIO", "MPI-IO": "MPIIO"}
MOST_FILES = 20
_READS = {
    "POSIX": ("READS",),
    "STDIO": ("READS",),
    "MPIIO": ("INDEP_READS", "COLL_READS", "SPLIT_READS", "NB_READS"),
}


def main(path: str) -> None:
    """Print the sums of one log."""
    import darshan

    report = darshan.DarshanReport(path, read_all=False)
    job = report.metadata["job"]
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    files: dict[tuple[str, int], dict[str, Any]] = {}
    for module, prefix in MODULES.items():
        if module not in report.modules:
            continue
        report.mod_read_all_records(module)
        frames = report.records[module].to_df()
        for counters, times in zip(  # noqa: B905 - frames of the same records
            frames["counters"].to_dict("records"), frames["fcounters"].to_dict("records")
        ):
            rank, sums = int(counters["rank"]), _sums(prefix, counters, times)
            _add(rows.setdefault((module, rank), {"num_files": 0}), {"num_files": 1, **sums})
            if module != "MPI-IO":
                name = str(report.name_records.get(int(counters["id"]), ""))
                _add(files.setdefault((name, rank), {}), sums)
    slowest = sorted(files.items(), key=lambda entry: -_seconds(entry[1]))[:MOST_FILES]
    document = {
        "num_ranks": int(job["nprocs"]),
        "start_s": int(job["start_time_sec"]),
        "end_s": int(job["end_time_sec"]),
        "rows": [{"module": module, "rank": rank, **sums} for (module, rank), sums in rows.items()],
        "slowest": [
            {"name": name, "rank": rank, **sums} for (name, rank), sums in slowest if name and _seconds(sums)
        ],
    }
    sys.stdout.write(json.dumps(document) + "\n")


def _sums(prefix: str, counters: dict[str, Any], times: dict[str, Any]) -> dict[str, Any]:
    def of(table: dict[str, Any], *names: str) -> Any:
        """-1 is Darshan's mark of what a record does not have."""
        return sum(max(table.get(f"{prefix}_{name}", 0), 0) for name in names)

    return {
        "num_reads": int(of(counters, *_READS[prefix])),
        "num_writes": int(of(counters, *(name.replace("READS", "WRITES") for name in _READS[prefix]))),
        "read_bytes": int(of(counters, "BYTES_READ")),
        "written_bytes": int(of(counters, "BYTES_WRITTEN")),
        "read_s": float(of(times, "F_READ_TIME")),
        "write_s": float(of(times, "F_WRITE_TIME")),
        "meta_s": float(of(times, "F_META_TIME")),
    }


def _seconds(sums: dict[str, Any]) -> float:
    return float(sums["read_s"] + sums["write_s"] + sums["meta_s"])


def _add(total: dict[str, Any], sums: dict[str, Any]) -> None:
    for name, value in sums.items():
        total[name] = total.get(name, 0) + value


if __name__ == "__main__":
    plan = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (plan["memory_bytes"],) * 2)
    warnings.simplefilter("ignore")
    main(plan["path"])
