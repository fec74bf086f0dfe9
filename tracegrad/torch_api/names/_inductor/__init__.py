"""torch._inductor: the compiler that does not run here; programs set what it would do."""
