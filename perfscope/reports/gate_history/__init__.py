"""The history of a benchmark as a report: the series, where it changed level, and where its step went."""
