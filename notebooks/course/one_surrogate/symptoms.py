"""The table "From symptom to cause", whose words `read-log` uses too."""

from refimpl.interop.logs import DATA

COLUMNS = ("symptom", "look", "cause", "first", "chapter")


def rows() -> list[list[str]]:
    """All rows in order: those that a log can show, and between them the others."""
    placed = list(DATA["row"])
    for one in DATA["other"]:
        names = [row["symptom"] for row in placed]
        placed.insert(names.index(one["after"]) + 1, one)
    return [[row[name] for name in COLUMNS] for row in placed]
