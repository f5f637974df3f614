"""A plan as a page: the ways to train, their Pareto front, what cannot be, and what was assumed."""
