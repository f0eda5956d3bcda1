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
            yield Test.from_parent(self, name=case.name)
        for reading in self.expected:
            yield Test.from_parent(self, name=f"expected: {reading}")

    @cached_property
    def answers(self) -> dict[str, table.Compared]:
        compared = table.compare(self.module, self.cases)
        return {answer.case.name: answer for answer in compared}


class Test(pytest.Item):
    """The test of one case, or that a declared difference still occurs in one."""

    def runtest(self):
        answers, expected = self.parent.answers, self.parent.expected
        if self.name in answers:
            return check(answers[self.name], expected)
        declared = self.name.removeprefix("expected: ")
        if not any(declared in (a.reading, name) for name, a in answers.items()):
            why = f"{declared!r} is expected, but no case shows it: drop it"
            pytest.fail(why, pytrace=False)

    def reportinfo(self):
        return self.path, None, self.name


def check(answer: table.Compared, expected: dict[str, str]) -> None:
    """Fail if the answer differs, unless that is expected, or is an error."""
    if answer.outcome == "not implemented":
        pytest.skip("not implemented")
    for declared in (answer.reading, answer.case.name):
        if answer.outcome == "differs" and declared in expected:
            pytest.xfail(expected[declared])
    if answer.outcome != "agrees":
        pytest.fail(answer.message, pytrace=False)
