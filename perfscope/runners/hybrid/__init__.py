"""Chains of blocks of which each is either data parallel or model parallel over the same ranks."""
