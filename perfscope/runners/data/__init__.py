"""Samples to train on: made from a seed, or read from files."""
