"""Integer arithmetic of indices: polynomials, what is known of them, tests and ranges that they need."""
