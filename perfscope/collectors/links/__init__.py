"""What links carry, measured: NUMA nodes, devices, TCP, collectives."""
