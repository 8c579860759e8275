"""The command line: one file per verb or pair of verbs. Only a run that starts imports torch."""
