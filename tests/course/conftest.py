"""Chapters under test refuse an explorer of which a control moves nothing.

It is set here and not in the chapters: a reader's own gate may well move nothing.
"""

import os

os.environ.setdefault("REFIMPL_CHECK_SLIDERS", "1")
