"""``python -m dpkern``: the same as the command ``dpkern``."""

from dpkern.cli import main

raise SystemExit(main())
