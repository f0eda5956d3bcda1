"""`python -m web [FOLDER] [--repository URL]`, called in `notebooks/`."""

import argparse
import os
import sys
from pathlib import Path

from web.build import build
from web.page import ROOT, SiteError


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m web",
        description="Build the web edition from the executed notebooks.",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=ROOT / "site",
        help="where to write the site: an empty or new folder, or an earlier site "
        "(default: site, in the repository)",
    )
    parser.add_argument(
        "--repository",
        default=os.environ.get("GITHUB_REPOSITORY", ""),
        help="OWNER/NAME or an address, for links that open, run or download notebooks "
        "(default: $GITHUB_REPOSITORY)",
    )
    arguments = parser.parse_args()
    try:
        first = build(arguments.folder.resolve(), arguments.repository)
    except (SiteError, OSError) as error:
        sys.exit(f"no site was made: {error}")
    print(f"open {first.as_uri()}")


if __name__ == "__main__":
    main()
