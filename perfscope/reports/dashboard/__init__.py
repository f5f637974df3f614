"""The page of all runs below a folder."""
