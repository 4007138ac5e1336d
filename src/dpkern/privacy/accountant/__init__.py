"""An accountant: a privacy budget in a file, and the filter that admits adaptive charges."""
