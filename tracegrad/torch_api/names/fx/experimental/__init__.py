"""torch.fx.experimental: of its modules those that programs import to ask whether a compiler of torch's has called them."""
