"""torch._subclasses: no tensors without values but those on "meta"."""
