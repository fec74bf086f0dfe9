"""torch._functorch."""
