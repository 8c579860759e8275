"""Statistics, tables, figures and pages about finished runs."""
