"""Studies of many plans: smallest budget, overhead curves, largest batch."""
