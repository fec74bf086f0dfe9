"""From kernels to a plan: calls of the host begun early and awaited late (`overlap`), small kernels batched into one launch
(`batch_launches`), loops of launches (`loop_steps`), storage of temporaries (`memory`), slots and source (`assemble`)."""
