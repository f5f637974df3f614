"""The ways to train a model on a machine: which there are, what they compute and hold, and short trials."""
