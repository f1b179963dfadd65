"""The one matrix type (canonical CSR), the boundary that makes it, and work on its entries."""
