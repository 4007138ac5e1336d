"""An accountant: a privacy budget in a file, and the filter that admits adaptive charges."""

from dpkern.privacy.accountant.accountant import Accountant, BudgetSpentError

__all__ = ["Accountant", "BudgetSpentError"]
