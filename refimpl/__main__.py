"""`python -m refimpl`: the command line of `refimpl.shell`."""

import sys

try:
    from refimpl.shell.main import main
except KeyboardInterrupt:  # already
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
