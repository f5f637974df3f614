"""/proc/PID/maps, numa_maps and the NUMA lines of status, as text. Nothing is opened here."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class NumaMaps:
    """What numa_maps says, summed over all mappings.

    Attributes:
        pages: node -> pages of the base size, file pages included.
        policies: policy -> pages; mappings without pages in memory count with 0.
    """

    pages: dict[int, int]
    policies: dict[str, int]

    @property
    def policy(self) -> str:
        """The policy of most pages: ``default``, ``bind:2``, ``interleave:0-1``, ``prefer:1``."""
        return max(self.policies, key=lambda name: self.policies[name], default="default")


def parse_numa_maps(text: str, page_size: int) -> NumaMaps:
    """Sum up numa_maps. Its counts are in units of each mapping's kernelpagesize_kB.

    Lines that were cut off or hold something else are skipped.
    """
    pages: Counter[int] = Counter()
    policies: Counter[str] = Counter()
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 2:
            continue
        unit, counts = page_size, []
        for word in fields[2:]:
            name, equals, value = word.partition("=")
            if name == "kernelpagesize_kB" and value.isdigit():
                unit = int(value) * 1024
            elif equals and name[:1] == "N" and name[1:].isdigit() and value.isdigit():
                counts.append((int(name[1:]), int(value)))
        for node, count in counts:
            pages[node] += count * unit // page_size
        policies[fields[1]] += sum(count for _, count in counts) * unit // page_size
    return NumaMaps(dict(sorted(pages.items())), dict(policies))


class Mappings:
    """The memory from which pages are drawn: writable, private, of no file.

    Args:
        text: /proc/PID/maps.
        page_size: bytes.
    """

    def __init__(self, text: str, page_size: int) -> None:
        spans = list(_writable_anonymous(text))
        self._page_size = page_size
        self._starts = [begin for begin, _ in spans]
        # Upper ends on a line on which all mappings lie one after the other, in pages.
        self._ends = list(accumulate((end - begin) // page_size for begin, end in spans))

    @property
    def num_pages(self) -> int:
        """Pages of address space, in memory or not."""
        return self._ends[-1] if self._ends else 0

    def draw(self, count: int, chance: random.Random) -> list[int]:
        """Addresses of `count` pages, each page as likely as any other; [] where there are none."""
        total = self.num_pages
        return [self._address(int(chance.random() * total)) for _ in range(count)] if total else []

    def _address(self, page: int) -> int:
        index = bisect_right(self._ends, page)
        before = self._ends[index - 1] if index else 0
        return self._starts[index] + (page - before) * self._page_size


def _writable_anonymous(text: str) -> Iterator[tuple[int, int]]:
    """(begin, end) of each mapping; lines that were cut off are skipped."""
    for line in text.splitlines():
        span, _, remainder = line.partition(" ")
        if not remainder.startswith("rw-p "):
            continue
        fields = remainder.split(None, 4)  # perms, offset, device, inode, path
        if len(fields) < 4 or fields[3] != "0" or (len(fields) == 5 and fields[4].startswith("/")):
            continue
        begin, dash, end = span.partition("-")
        if dash:
            yield int(begin, 16), int(end, 16)


def status_fields(text: str, names: Iterable[str]) -> dict[str, str]:
    """``Name:\\tvalue`` lines of /proc/PID/status; absent ones are left out."""
    values: dict[str, str] = {}
    for name in names:
        at = text.find(f"\n{name}:")
        if at >= 0:
            begin = at + len(name) + 2
            values[name] = text[begin : text.find("\n", begin)].strip()
    return values
