"""torch.autograd's names that are not in `tracegrad.autograd`: submodules."""
