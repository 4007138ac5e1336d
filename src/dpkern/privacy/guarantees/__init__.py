"""Guarantees as functions of epsilon: Gaussian, concentrated and other forms, and budgets."""
