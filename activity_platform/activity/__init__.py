"""The activity log and the affinity edges folded from it."""
