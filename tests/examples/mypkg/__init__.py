"""A package outside of rlrun: a policy and a memory of its own."""
