"""One file per command: parse, call, print. Nothing imports this room."""
