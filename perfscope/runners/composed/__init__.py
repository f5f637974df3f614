"""Several axes of a mesh at once: what each divides, and what each sends."""
