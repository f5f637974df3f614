"""`perfscope check`: the gate."""
