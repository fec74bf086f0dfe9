"""How programs of several ranks scale: what can be measured here, and a model of what cannot. Start at `__main__`."""
