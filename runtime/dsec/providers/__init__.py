"""Where nodes come from: one small interface, and one module per kind of provider behind it."""
