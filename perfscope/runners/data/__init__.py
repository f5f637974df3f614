"""Samples to train on: made from a seed, or read from a folder or an .npz file."""
