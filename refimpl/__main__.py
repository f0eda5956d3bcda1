"""`python -m refimpl`: the command line of `refimpl.cli`."""

import sys

try:
    from refimpl.cli import main
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main())
