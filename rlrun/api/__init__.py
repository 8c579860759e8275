"""rlrun from Python: what the command line does, as functions; the classes Run and Agent.

``import rlrun`` offers these names and imports a module when one of them is used. Every function
calls what the command line calls.
"""
