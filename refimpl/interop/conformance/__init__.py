"""Does another implementation compute the same losses? Cases, and a table of answers.

    python -m refimpl conformance > cases.json               the cases, for any language
    python -m refimpl conformance --against my_adapters.py   the table, for Python

`cases` computes inputs, losses and gradients in float64, `loader` reads them without
this package, `adapters` is the file that a framework's author fills in, `table`
compares, and names the known misreading (`readings`) that a difference matches.
"""
