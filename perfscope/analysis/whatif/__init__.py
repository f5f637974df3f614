"""What the step would take without one of its costs."""
