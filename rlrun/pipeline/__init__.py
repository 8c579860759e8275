"""The loops that tie collector, buffer and learner together."""
