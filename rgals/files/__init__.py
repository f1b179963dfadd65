"""Files that are whole or not there: atomic writing, checked archives, journals."""
