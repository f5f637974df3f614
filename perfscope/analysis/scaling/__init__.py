"""How throughput grows with the number of ranks: speedup, efficiency, fitted laws, first principles."""
