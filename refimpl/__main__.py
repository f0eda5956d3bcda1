"""`python -m refimpl`, or `refimpl`: the command line of `refimpl.cli`."""

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit status."""
    if "torch" not in sys.modules:
        print("loading torch …", file=sys.stderr)  # which takes seconds
    from refimpl import cli

    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
