"""From graphs to values: what runs when and by which backend (`policy`), programs (`compile`), what is deferred (`deferred`)."""
