"""What solvers release: mechanisms joined to the kernels that compute the sums."""
