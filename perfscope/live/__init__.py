"""Watches a run while `perfscope run` records it: hangs, a line a minute, a file of metrics."""
