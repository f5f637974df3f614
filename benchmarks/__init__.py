"""Measurements and derivations that are not part of the package; docs/validation.md has what they gave."""
