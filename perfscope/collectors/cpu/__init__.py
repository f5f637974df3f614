"""CPU time, clocks, threads, pressure; and who else used the CPUs."""
