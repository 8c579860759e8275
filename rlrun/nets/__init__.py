"""Networks of torch: torsos, memories, heads, and the networks of every family of policies."""
