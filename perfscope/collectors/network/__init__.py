"""Ethernet, TCP, InfiniBand, Omni-Path, RoCE."""
