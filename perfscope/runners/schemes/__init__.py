"""Parallel schemes, one small class each; registry.py lists them."""
