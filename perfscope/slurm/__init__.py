"""Batch jobs of Slurm: writing their scripts, submitting, following and recording them."""
