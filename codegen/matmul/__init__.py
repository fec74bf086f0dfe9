"""Matrix products: what one is (`problem`), which schedule it gets (`schedules`), the kernels of each (`cpu`, `gpu`), and where
groups of the schedule come in (`lower`)."""
