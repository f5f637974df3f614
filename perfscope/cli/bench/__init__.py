"""`perfscope bench`: train models under schemes and frameworks."""
