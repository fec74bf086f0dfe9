"""torch.fx.passes: of its modules, shape_prop."""
