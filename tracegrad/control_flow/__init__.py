"""cond, while_loop and scan (`functions`); loops as operations of the graph, and untraced loops that are detected."""
