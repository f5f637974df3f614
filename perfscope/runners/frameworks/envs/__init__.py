"""`perfscope bench env`: pinned environments, one per framework, so that comparisons can be repeated."""
