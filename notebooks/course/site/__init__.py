"""The web edition: static pages from the executed notebooks, for a browser alone.

`python -m course.site` builds it, from the notebooks' folder. `page` says what a page
is, `markdown` and `notebook` make pages of files, the modules beside them make pages
that no file holds; `build` links, checks and writes them all.
"""
