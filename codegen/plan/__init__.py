"""From kernels to a plan: small ones batched into one launch (`batch_launches`), storage of temporaries (`memory`), slots and
source (`assemble`)."""
