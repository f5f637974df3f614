"""Parts of benchmarks/gate.py: the training, its runs, and what is made of them."""
