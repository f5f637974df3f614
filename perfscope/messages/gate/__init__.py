"""Sentences of `perfscope check`, `baseline` and `history`."""
