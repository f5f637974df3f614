"""Measured peaks of a host: memory bandwidth and FLOP/s."""
