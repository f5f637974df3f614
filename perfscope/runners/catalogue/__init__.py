"""What there is, in words: families, lists and docs/schemes.md."""
