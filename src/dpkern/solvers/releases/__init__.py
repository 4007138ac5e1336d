"""The releases of solvers: kernels that compute sums, followed by mechanisms that add noise."""
