"""Passes: a graph in, a simpler graph out, the same values. `rewrite` makes the nodes."""
