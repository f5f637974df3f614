"""Networks to train, one file per family; registry.py lists them."""
