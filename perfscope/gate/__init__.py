"""Has training become slower? Runs in, a verdict out: pairs, baselines, trends, and what moved."""
