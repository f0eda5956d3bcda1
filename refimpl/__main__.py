"""`python -m refimpl`: the command line of `refimpl.shell`."""

import sys

from refimpl.shell.main import main

if __name__ == "__main__":
    sys.exit(main())
