"""What is of one driver only: how PoCL's and Intel's compilers are told what they need to know."""
