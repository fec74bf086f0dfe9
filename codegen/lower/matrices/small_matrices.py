"""Factorisations of many small matrices (see graph/small_matrices.py). Start at `lower_matrices`, then `ALGORITHMS`.

A work-item holds whole matrices in arrays of its own: on a CPU as many as a vector has lanes, one a lane; on a GPU one. What a matrix
decides (which row is the pivot) is a selection, so lanes never part. The algorithms are in the language of kernel.py, one for real and
complex matrices. On CPUs float32 is computed in float64, as NumPy does it, but for LU factors; vectors are half as many lanes there.

Elimination: elimination.py; QR: reflections.py. Symmetric eigenvalues and singular values are Jacobi's (jacobi.py), whose iteration is the
same for all lanes; LAPACK's is not. Those of general matrices: eig_qr.py. Exponentials: expm.py.
"""

from __future__ import annotations

from dataclasses import replace

from tracegrad.codegen.kernel.ir.kernel import Kernel
from tracegrad.codegen.lower.context import Context, lowering
from tracegrad.codegen.lower.host_call import siblings
from tracegrad.codegen.lower.matrices import eig_qr, elimination, expm, jacobi, reflections
from tracegrad.codegen.lower.matrices.kernel import Matrices
from tracegrad.codegen.schedule.grouping import Group


@lowering("small_matrices")
def lower_matrices(group: Group, context: Context) -> list[Kernel]:
    results = siblings(group, context)
    if results is None:
        return []
    one = Matrices(group, context, results)
    size = " and ".join(f"{m} x {n}" for m, n in one.shapes)
    how = next((how for end, how in STEPS.items() if one.name.endswith(end)), "LAPACK's steps")
    made = one.kernel(ALGORITHMS[one.name.removeprefix("complex_")])
    return [replace(made, note=f"{how} for {one.batch} of {size}, {one.lanes} at a time in a work-item")]


STEPS = {"eigh": "Jacobi's rotations", "svd": "Jacobi's rotations", "_exp": "scaling and squaring",
         "eig": "QR steps"}      # the others are LAPACK's
ALGORITHMS = {
    "solve": elimination.solve, "inv": elimination.inv, "solve_triangular": elimination.triangle, "det": elimination.det,
    "slogdet": elimination.slogdet, "cholesky": elimination.cholesky, "lu_factor": elimination.lu, "pivot_order": elimination.order,
    "factor_info": elimination.info, "qr": reflections.qr, "geqrf": reflections.geqrf, "eigh": jacobi.eigh, "svd": jacobi.svd,
    "eig": eig_qr.eig, "matrix_exp": expm.exponential, "frechet_exp": expm.exponential,
}
