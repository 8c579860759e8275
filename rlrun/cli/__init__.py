"""The command line: one file per verb or pair of verbs. torch is imported only when a run
starts.
"""
