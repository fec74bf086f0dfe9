"""What `verify.py` proves of a kernel: ranges, races, operands. Each file is a class that the next one extends."""
