"""Graphs run by NumPy: one rule after the other (`interpreter`), prepared (`numpy_program`), loops (`generated_loop`)."""
