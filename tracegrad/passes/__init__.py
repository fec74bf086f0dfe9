"""Passes over graphs that both backends use: what is alive (`liveness`), sums of paddings (`paddings`), loops (`loops`)."""
