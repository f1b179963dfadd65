"""The one matrix type (canonical CSR), the boundary that makes it, and plain splits of it."""
