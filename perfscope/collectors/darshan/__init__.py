"""Darshan's logs: what a job read from and wrote to files, into a run that is there."""
