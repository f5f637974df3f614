"""Which way to train is fastest on a machine that is only described: candidates in, a ranking out."""
