"""Test whether another implementation computes the same losses.

    python -m refimpl conformance > cases.json               the cases, for any language
    python -m refimpl conformance --against my_adapters.py   the table, for Python

`cases` computes inputs, losses and gradients in float64. `loader` reads them without
this package. `adapters` is a file for a framework's author to fill in. `table` compares
the results, and names the known misreading (`readings`) that explains a difference.
"""
