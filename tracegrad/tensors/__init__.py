"""Tensors: the handle on a node (`tensor`), its methods, views and in-place changes; where they come from (`creation`)."""
