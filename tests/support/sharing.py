"""Tests that share what one start of ranks or a long recording gave run in one worker of pytest-xdist.

Groups of pytest-xdist 3.8 have no effect with pytest 9.2: the name of a test can no longer be changed to
carry that of its group. This scheduler reads the group from the name as it is.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

# Group -> files of `tests`, or a file and what stands in the name of the test.
SHARING = {
    "pipelines": ("runners/test_pp.py", "runners/test_hy.py"),
    "servers": ("runners/test_async.py", "runners/test_easgd.py"),
    "exact": ("runners/test_dp.py",),
    "codecs": ("runners/test_compression.py",),
    "stages": ("runners/test_mp.py",),
    "models": ("runners/test_more_models.py",),
    "shapes": ("runners/test_inputs.py",),
    "held-out": ("runners/test_learning.py",),
    "mpi": ("runners/test_mpi.py",),
    "clicks": ("runners/test_clicks.py",),
    "hybrids": ("integration/test_compare_hybrids.py",),
    "engines": ("integration/test_engines.py",),
    "damage": ("integration/test_damage.py",),
    **{
        f"meshes of {number} ranks": (f"runners/test_mesh_axes.py {number} ranks: ",)
        for number in ("two", "four", "eight", "sixteen")
    },
}


def group_of(name: str) -> str:
    """Group of a test, by its name for pytest; the name itself where it shares nothing."""
    for group, entries in SHARING.items():
        for entry in entries:
            file, _, part = entry.partition(" ")
            if name.startswith(f"tests/{file}::") and part in name:
                return group
    return name


class SharedStarts(LoadScopeScheduling):
    """Every group is one unit of work, and so is every other test; the largest units are begun first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
