"""Write the source of the GPU's kernels as one text, in a C array, which `_core` keeps.

    python embed.py ROOT > gpu_source.h

What a header of dpkern includes is put in its place, once; the compiler of the GPU has no others.
"""

import re
import sys
from pathlib import Path


def joined(root: Path, name: str, seen: set[str]) -> str:
    """Return the text of a file of `root` with its own headers in it, those in `seen` left out."""
    if name in seen:
        return ""
    seen.add(name)
    text = (root / name).read_text(encoding="utf-8").replace("#pragma once\n", "")
    return re.sub(r'#include "(.+)"\n', lambda found: joined(root, found[1], seen), text)


def main() -> None:
    text = joined(Path(sys.argv[1]), "gpu/sums.h", {"names.h"})  # of one instruction set
    print(f"static const char gpu_source_text[] = {{{','.join(map(str, [*text.encode(), 0]))}}};")


if __name__ == "__main__":
    main()
