"""The web edition: static pages made from the executed notebooks.

`python -m web`, called in `notebooks/`, builds it. `page` defines a page. `markdown`
and `notebook` make pages from files; other modules make pages that have no file, each
from its template in `assets/`. `build` links, checks and writes all of them. `tables`
stores what an explorer draws, since a page has no kernel. This package imports
`course`, which never imports it.
"""
