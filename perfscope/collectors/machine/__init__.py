"""What the machine is: topology, theoretical peaks, what surrounds us."""
