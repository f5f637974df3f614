"""Several runs compared: may they be, how they scale, which scheme wins, what changed between two of them."""
