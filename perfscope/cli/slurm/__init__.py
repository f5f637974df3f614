"""`perfscope slurm`: batch jobs that record themselves."""
