"""A simulated accelerator for tests: real arithmetic, strict about devices, and it counts what a GPU would wait for."""
