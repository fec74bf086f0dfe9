"""Graph to graph: derivatives (`derivatives`: vjp and jvp) and batching (vmap)."""
