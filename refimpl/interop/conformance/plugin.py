"""The cases as tests of your own suite, one for each:

    pytest -p refimpl.interop.conformance.plugin refimpl_mine.py

Files named `refimpl_*.py` are read as adapters (see `adapters`). A case that agrees
passes, one that an adapter raises `NotImplementedError` for is skipped, and one that
differs fails, with the known misreading that it matches. What differs on purpose is
declared in the file, by a reading or by the name of a case,

    EXPECTED = {"the dual clip (c = 3) is always on": "clip_ratio_c has no off"}

and is an expected failure then, with your reason. One that is met no longer is red, as
is a `SCHEMA` that is not this package's.
"""

from functools import cached_property

import pytest

from refimpl.interop.conformance import cases, table
from refimpl.validation import UserError


def pytest_collect_file(file_path, parent):
    """Adapters by their name."""
    if file_path.suffix == ".py" and file_path.name.startswith("refimpl_"):
        return Adapters.from_parent(parent, path=file_path)


class Adapters(pytest.File):
    """A file's answers, asked for once."""

    def collect(self):
        try:
            self.module = table.adapters(self.path)
        except UserError as error:
            raise self.CollectError(str(error)) from error
        schema = getattr(self.module, "SCHEMA", cases.SCHEMA)
        if schema != cases.SCHEMA:
            raise self.CollectError(
                f"{self.path} is for cases of schema {schema}, this refimpl has schema "
                f"{cases.SCHEMA}: see its CHANGELOG, then change SCHEMA"
            )
        self.expected = dict(getattr(self.module, "EXPECTED", {}))
        here = vars(self.module)
        self.cases = [case for case in cases.cases() if case.algorithm in here]
        for case in self.cases:
            yield Answer.from_parent(self, name=case.name)
        for reading in self.expected:
            yield Declared.from_parent(self, name=f"expected: {reading}")

    @cached_property
    def answers(self) -> dict[str, table.Compared]:
        every = table.compare(self.module, self.cases)
        return {answer.case.name: answer for answer in every}

    def reason(self, answer: table.Compared) -> str | None:
        """Why it is expected to differ; None if it is not."""
        names = answer.reading, answer.case.name
        return next((self.expected[n] for n in names if n in self.expected), None)


class Answer(pytest.Item):
    """One case."""

    def runtest(self):
        answer = self.parent.answers[self.name]
        if answer.outcome == "not implemented":
            pytest.skip("not implemented")
        if answer.outcome == "differs" and (why := self.parent.reason(answer)):
            pytest.xfail(why)
        if answer.outcome != "agrees":
            raise table.Differs(answer.said)

    def repr_failure(self, excinfo):
        return str(excinfo.value)

    def reportinfo(self):
        return self.path, None, self.name


class Declared(Answer):
    """An expected difference, which must be met somewhere."""

    def runtest(self):
        said = self.name.removeprefix("expected: ")
        met = ((a.reading, a.case.name) for a in self.parent.answers.values())
        if not any(said in names for names in met):
            raise table.Differs(
                f"{said!r} is expected, but no case differs so: drop it"
            )
