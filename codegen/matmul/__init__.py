"""Matrix products: what one is (`problem`), schedules and kernels (`cpu`, `gpu`)."""
