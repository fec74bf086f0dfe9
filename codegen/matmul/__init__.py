"""Matrix products: what one is (`problem`), schedules and kernels (`cpu`, `gpu`), and where groups of the schedule come in (`lower`)."""
