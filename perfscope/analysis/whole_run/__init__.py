"""The whole run: what its wall time went to, and what its long steps hold."""
