"""Convolutions and their gradients: what one is (`problem`), which schedule it gets (`schedules`, `weight_grad`), how images are laid out
(`layout`), the kernels (`cpu`, `gpu`), and where groups of the schedule come in (`lower`)."""
