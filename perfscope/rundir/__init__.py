"""The run directory: what a run leaves on disk, and the only code that knows its paths."""
