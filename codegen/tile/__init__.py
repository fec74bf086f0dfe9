"""Tile programs: what a kernel does with blocks of values (`program`), and how the items of a GPU's work-groups do it (`gpu`)."""
