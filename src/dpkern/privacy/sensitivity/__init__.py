"""Grids of sums, and by how much one record changes what a mechanism adds noise to."""
