"""Certificates: the ledger of releases, their composition, and the form in files."""
