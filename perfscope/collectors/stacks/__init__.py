"""Python stacks of the ranks, read from outside."""
