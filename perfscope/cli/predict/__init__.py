"""`perfscope predict`: machines not at hand."""
