"""Convolutions and their gradients: what one is (`problem`), how images are laid out (`layout`), the kernels (`cpu`, `weight_grad`, `gpu`),
and where groups of the schedule come in (`lower`)."""
