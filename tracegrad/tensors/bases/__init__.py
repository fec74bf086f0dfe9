"""What `Tensor` (tensors/tensor.py) is made of: its bases, one concern each. Start at `handle.py`."""
