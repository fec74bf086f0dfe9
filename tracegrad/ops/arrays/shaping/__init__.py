"""Shaping functions: reshape, permute, expand, flip, pad, diagonals, ... composed of the movement primitives; none computes anything.

Names, arguments and meanings are torch's. All are pure here: the Tensor's methods say which results alias their base. `../joining.py` has
`cat`, `split` and their kin.
"""

from tracegrad.ops.arrays.shaping import diagonals, padding, reordering, repeating, reshaping

__all__ = ["diagonals", "padding", "reordering", "repeating", "reshaping"]
