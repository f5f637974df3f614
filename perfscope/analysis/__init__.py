"""Pure functions: tables in, frozen dataclasses out. No plotting, no torch, no files."""
