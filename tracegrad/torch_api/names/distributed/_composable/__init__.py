"""torch.distributed._composable: older paths of what torch.distributed has."""
