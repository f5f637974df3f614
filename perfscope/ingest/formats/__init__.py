"""Trace formats: how each is recognized, which ranks a file holds, and how it is read."""
