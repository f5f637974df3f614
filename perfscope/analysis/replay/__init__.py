"""The step as a max-plus system of local work and calls, which can be run again with something changed."""
