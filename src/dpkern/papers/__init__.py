"""The papers' printed noise and what it really gives; demonstrations of their flaws."""
