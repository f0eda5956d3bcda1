"""The web edition: static pages from the executed notebooks, for a browser alone.

`python -m web` builds it, from the notebooks' folder. `page` says what a page is,
`markdown` and `notebook` make pages of files, the modules beside them make pages that
no file holds, each from its template in `assets/`; `build` links, checks and writes
them all. `tables` stores what an explorer draws without a kernel. It imports `course`,
which never imports it.
"""
