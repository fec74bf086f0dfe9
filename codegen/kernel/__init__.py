"""What one kernel is made of.

`ir`: kernels, and what their parameters bind to; `index`: symbolic index arithmetic; `facts`: what is known of values; `expressions`:
values of nodes; `vectors`: types and their access; `writer`: statements, names, the text; `run`: kernels run without a driver.
"""
