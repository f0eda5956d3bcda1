"""`python -m experiments`, called in `notebooks/`: the commands of `command`."""

import sys

if __name__ == "__main__":  # the processes that `--workers` starts import this too
    print("loading torch and transformers …", file=sys.stderr, flush=True)
    from experiments.command import main

    sys.exit(main())
