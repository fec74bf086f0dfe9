"""What a program is made of: nodes and graphs (`ir`), what an operation has to say of itself (`primitive`), their text and their checks."""
