"""One step of E environments: numpy in, numpy out."""
