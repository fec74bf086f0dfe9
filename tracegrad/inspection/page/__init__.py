"""The page of a traced function, and pictures of graphs."""
