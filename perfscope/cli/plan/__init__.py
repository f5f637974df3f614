"""`perfscope plan`: candidates, their figures, and the words for them."""
