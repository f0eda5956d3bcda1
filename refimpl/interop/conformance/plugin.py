"""A pytest plugin that makes each case a test of your own suite:

    pytest -p refimpl.interop.conformance.plugin refimpl_mine.py

Files named `refimpl_*.py` are read as adapters (see `adapters`). A case that agrees
passes. A case for which an adapter raises `NotImplementedError` is skipped. A case that
differs fails, and names the known misreading that it matches. Declare intended
differences in the file, by a reading or by the name of a case:

    EXPECTED = {"the dual clip (c = 3) is always on": "clip_ratio_c has no off"}

They become expected failures with your reason. The test fails again once no case shows
the difference any more, or if `SCHEMA` is not this package's.
"""

from functools import cached_property

import pytest

from refimpl.interop.conformance import cases, table
from refimpl.validation import UserError


def pytest_collect_file(file_path, parent):
    """Collect files named `refimpl_*.py` as adapters."""
    if file_path.suffix == ".py" and file_path.name.startswith("refimpl_"):
        return Adapters.from_parent(parent, path=file_path)


class Adapters(pytest.File):
    """A file of adapters; its losses are computed once."""

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
        compared = table.compare(self.module, self.cases)
        return {answer.case.name: answer for answer in compared}

    def reason(self, answer: table.Compared) -> str | None:
        """Return the declared reason for a difference; None if it is not expected."""
        names = answer.reading, answer.case.name
        return next((self.expected[n] for n in names if n in self.expected), None)


class Answer(pytest.Item):
    """The test of one case."""

    def runtest(self):
        answer = self.parent.answers[self.name]
        if answer.outcome == "not implemented":
            pytest.skip("not implemented")
        if answer.outcome == "differs" and (why := self.parent.reason(answer)):
            pytest.xfail(why)
        if answer.outcome != "agrees":
            raise table.Differs(answer.message)

    def repr_failure(self, excinfo):
        return str(excinfo.value)

    def reportinfo(self):
        return self.path, None, self.name


class Declared(Answer):
    """The test that a declared difference still occurs in at least one case."""

    def runtest(self):
        declared = self.name.removeprefix("expected: ")
        seen = ((a.reading, a.case.name) for a in self.parent.answers.values())
        if not any(declared in names for names in seen):
            raise table.Differs(
                f"{declared!r} is expected, but no case shows it: drop it"
            )
