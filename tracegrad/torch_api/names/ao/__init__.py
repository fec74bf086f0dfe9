"""torch.ao: quantized numbers are not here; what trains for them is."""
