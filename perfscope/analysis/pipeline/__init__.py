"""Pipeline parallelism: which stage worked on which microbatch when, and why stages waited."""
