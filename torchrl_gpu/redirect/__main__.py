"""`python -m torchrl_gpu.redirect script.py`."""

import sys

from torchrl_gpu.redirect.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
