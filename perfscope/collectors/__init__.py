"""Hardware counters, sampled beside the training: one file per source, one sampler per host."""
