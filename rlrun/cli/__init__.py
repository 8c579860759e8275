"""The command line: one file per verb or pair of verbs; torch-free until a run starts."""
