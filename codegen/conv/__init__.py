"""Convolutions and their gradients: what one is (`problem`), how images are laid out (`layout`), kernels (`cpu`, `weight_grad`, `gpu`)."""
