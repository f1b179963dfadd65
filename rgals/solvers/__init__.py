"""How a loss is minimised: the alternating loop, its backends and the closed form."""
