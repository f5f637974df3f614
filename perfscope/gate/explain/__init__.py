"""Why a step takes longer than it did: which part, which layers and collectives, what differed around it."""
