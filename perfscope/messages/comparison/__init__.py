"""Sentences of `perfscope compare`: one module per view."""
