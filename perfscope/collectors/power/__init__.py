"""Energy of the processor."""
