"""Cutting a chain of blocks into pipeline stages, and batches into microbatches. No torch."""
