"""Statistics, tables, figures and pages on finished runs."""
