"""What a program is made of: nodes and graphs (`ir`), what an operation says of itself (`primitive`, `families`), text and checks."""
