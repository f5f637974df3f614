"""Whether and how fast a run learns: the held-out set, targets, the noise of its gradients."""
