"""What a training step holds in memory and computes, without running it: see tape and footprint."""
