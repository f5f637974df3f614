"""How much of the machine's time the run used, and what took the rest (POP's factors)."""
