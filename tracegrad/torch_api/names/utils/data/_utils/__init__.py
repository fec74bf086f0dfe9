"""torch.utils.data._utils: parts of loaders that other libraries call."""
