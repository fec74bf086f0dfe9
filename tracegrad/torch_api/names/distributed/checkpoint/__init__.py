"""torch.distributed.checkpoint: what `tracegrad.distributed.checkpoint` has, and beside it `state_dict`."""
