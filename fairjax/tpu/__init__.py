"""TPU chips and slices: what a program needs on a slice, and launching."""
