"""Windows over stored rows: cutting, tables, gathering."""
