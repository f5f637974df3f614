"""The report of several runs: how they scale, which scheme wins, what changed between two."""
