"""Losses, penalties and models that are not linear."""
