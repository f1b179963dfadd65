"""How the device backend cuts the rows of a half-step into batches of one shape."""
