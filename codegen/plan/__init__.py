"""From kernels to a plan: small ones batched into one launch (`batch_launches`), loops of launches (`loop_steps`), storage of
temporaries (`memory`), slots and source (`assemble`)."""
