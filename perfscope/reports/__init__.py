"""What people see: one Report model, then one renderer per format."""
