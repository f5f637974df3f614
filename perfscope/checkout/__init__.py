"""Git worktrees of other versions of the user's code, and whose code a command in them would import."""
