"""Data loaders with workers: how batches were made and asked for, why they were late, what would help."""
