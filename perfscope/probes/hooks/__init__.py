"""Libraries whose own hooks are phases by name (../phases.py): each module waits for one to be imported."""
