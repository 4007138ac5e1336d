"""The common base of all solvers: declaration, run, objective and result."""
