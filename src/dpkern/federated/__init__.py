"""Solvers across machines: every silo runs the solver on its own records."""
