"""Reading and writing files safely: atomic writing, checked archives, journals."""
