"""Wrapping a training command: environment, launcher rewriting, signals, exit codes, finishing."""
