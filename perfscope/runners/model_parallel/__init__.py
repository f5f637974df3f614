"""Splitting the layers of one model over the ranks of a group."""
