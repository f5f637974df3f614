"""The hosts' clocks (METRICS §8): how they stand to each other, how sure that is, where one jumped."""
