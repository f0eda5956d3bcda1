"""`python -m refimpl`: the command line of `refimpl.cli`."""

import signal
import sys

# While modules are imported, Ctrl-C ends the process without a traceback. `cli.library`
# turns that back.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from refimpl.cli import main

if __name__ == "__main__":
    sys.exit(main())
