"""Questions that take many plans to answer: the smallest budget, overhead against budget, the largest batch."""
