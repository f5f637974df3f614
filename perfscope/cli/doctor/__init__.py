"""`perfscope doctor`: what can be measured on this machine."""
