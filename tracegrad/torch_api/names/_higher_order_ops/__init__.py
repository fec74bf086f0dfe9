"""torch._higher_order_ops."""
