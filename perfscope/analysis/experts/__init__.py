"""Expert parallelism: how many tokens each rank's experts are given, and what unequal shares cost."""
