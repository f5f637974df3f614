"""Who the neighbors of an episode were, with figures that add up to the episode's own.

A neighbor is described by records, each an average over the seconds before it and at most one in ten seconds,
so what one fact says is not what the neighbor took over the episode.
"""

from __future__ import annotations

from collections import defaultdict

from perfscope.analysis.machine.episodes import Episode
from perfscope.analysis.machine.host import Host
from perfscope.rundir.sample_facts import Neighbor

_SECOND = 1_000_000_000
_LINES = 5
_CHIEF = 0.2  # of what the busiest took
_LEAST = 0.05  # CPUs: less is printed as 0.0


def who(host: Host, kind: str, episode: Episode) -> tuple[list[str], list[str]]:
    """Names and evidence lines of the neighbors seen during an episode, the busiest first.

    Args:
        host: with its facts.
        kind: label of the facts: cpu, gpu.
        episode: of a level in CPUs for `cpu`.
    """
    by_process: dict[tuple[str, str], list[Neighbor]] = defaultdict(list)
    for fact in host.samples.facts:
        seen = fact.value
        if not isinstance(seen, Neighbor) or fact.labels.get("kind") != kind:
            continue
        since_ns = fact.t_ns - round(_SECOND * _seconds(seen))
        if since_ns < episode.end_ns and fact.t_ns > episode.start_ns:
            by_process[seen.name, seen.user].append(seen)
    used = {key: sum(map(_cpu_ns, records)) / episode.dur_ns for key, records in by_process.items()}
    ranked = sorted(by_process, key=lambda key: -used[key])
    # A title names those who made the disturbance, not everybody who was there.
    chief = [key for key in ranked if used[key] >= _CHIEF * used[ranked[0]]]
    names = list(dict.fromkeys(key[0] or "?" for key in chief))[:3]
    if kind != "cpu":
        lines = [_line_of(by_process[key]) for key in ranked[:_LINES]]
        return names, [*lines, f"and {len(ranked) - _LINES} more"] if len(ranked) > _LINES else lines
    return names, _shares(ranked, by_process, used, episode.mean)


def _shares(
    ranked: list[tuple[str, str]],
    by_process: dict[tuple[str, str], list[Neighbor]],
    used: dict[tuple[str, str], float],
    mean: float,
) -> list[str]:
    """Lines whose figures, as printed, add up to the episode's."""
    if not ranked:
        return []
    if len(ranked) == 1:
        return [f"{_line_of(by_process[ranked[0]])}: {mean:.1f} CPUs"]
    total = sum(used.values())
    scale = min(1.0, mean / total) if total > 0 else 0.0
    unattributed = round(mean, 1)
    lines = []
    for key in ranked[:_LINES]:
        share = min(round(used[key] * scale, 1), unattributed)
        unattributed = round(unattributed - share, 1)
        lines.append(
            f"{_line_of(by_process[key])}: {f'{share:.1f}' if share >= _LEAST else 'under 0.1'} CPUs"
        )
    hidden = len(ranked) - _LINES
    left = f": {unattributed:.1f} CPUs" if unattributed >= _LEAST else ""
    if hidden > 0:
        lines.append(f"and {hidden} more{left}")
    elif left:
        lines.append(f"others, or not distinguished{left}")
    return lines


def _seconds(record: Neighbor) -> float:
    """How long the neighbor was watched for the record."""
    return record.seconds or 1.0


def _cpu_ns(record: Neighbor) -> float:
    return record.cpus * _seconds(record) * _SECOND


def _line_of(records: list[Neighbor]) -> str:
    """Name, process and user, by the record that says most."""
    most = max(records, key=_cpu_ns)
    several = f"{most.processes} processes, one is " if most.processes > 1 else ""
    about = [f"{several}pid {most.pid}"] if most.pid else []
    about += [f"user {most.user}"] if most.user else []
    about_text = f" ({', '.join(about)})" if about else ""
    return f"{most.name or 'a process'}{about_text}"
