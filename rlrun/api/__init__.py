"""rlrun from Python: the commands of the command line as functions, and the classes Run and Agent.

``import rlrun`` offers these names and imports a module on first use. Every function calls the same
code as the command line.
"""
