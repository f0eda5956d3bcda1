"""The table "From symptom to cause", whose words `read-log` uses too."""

from refimpl.interop.logs import DATA

COLUMNS = ("symptom", "look", "cause", "first", "chapter")


def rows() -> list[list[str]]:
    return [[row[name] for name in COLUMNS] for row in DATA["row"]]
