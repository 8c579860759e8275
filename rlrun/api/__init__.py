"""rlrun from Python: train, resume, load, sweep and report; the classes Run and Agent.

``import rlrun`` offers these names and imports a module when one of them is used. Every function
calls what the command line calls.
"""
