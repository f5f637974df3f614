"""Wait states (METRICS §2): who entered a call last, why it was late, and what the waiting for it cost."""
