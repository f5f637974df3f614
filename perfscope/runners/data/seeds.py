"""Seeds of generators that have nothing to do with each other, from a run's one seed."""

from __future__ import annotations


def mixed_seed(seed: int, *keys: int) -> int:
    """In [0, 2^63): for each list of words another, also for neighboring seeds and words.

    splitmix64's finaliser after each word (Steele, Lea, Flood, OOPSLA 2014).
    """
    mixed = 0
    for word in (seed, *keys):
        mixed = (mixed + word + 0x9E3779B97F4A7C15) % (1 << 64)
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % (1 << 64)
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % (1 << 64)
        mixed ^= mixed >> 31
    return mixed >> 1
