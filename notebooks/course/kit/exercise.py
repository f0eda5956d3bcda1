"""Define an exercise, and judge an answer to it.

An exercise knows some cases, the right answer, and the answers that people usually give
instead. `judged` runs yours on the cases: if it agrees with the right one, you are
done; if it agrees with a known wrong one, it says which mistake that is; otherwise it
shows the first case where it differs.
"""

import contextlib
import copy
import dis
import importlib
import inspect
import pkgutil
import random
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from IPython.display import Markdown, display

import course
from course.kit.solved import chapter, remember


@dataclass
class Exercise:
    """`solution` is a function of the cases' arguments, or a plain value and `why`.

    `mistakes` maps a reply to the wrong function (or value) that it explains; a dict
    stands for the solution with its keys' text replaced, and where code is asked for, a
    list for several wrong functions. `choices` holds the answers
    that the task offers, if it offers any. Where two answers are asked for, `parts`
    names them, and `choices`, if given, has a tuple for each. Where a bug is sought in
    a listing of so many `lines`, an answer such as "6a" is its line and the reason.
    A number is rounded to `decimals`, if given, before it is compared. With `gradient`
    a function is judged by its value and by its gradient with respect to a case's first
    argument. Title, kind, difficulty and minutes stand in the chapter, above the cell.
    """

    key: str
    solution: Any
    why: str = ""
    cases: tuple[tuple, ...] = ()
    mistakes: dict[str, Any] = field(default_factory=dict)
    choices: tuple = ()
    parts: tuple[str, ...] = ()
    lines: int = 0
    decimals: int | None = None
    gradient: bool = False

    def __post_init__(self):
        if self.lines:
            self.parts = "line", "reason"
            self.choices = tuple(range(1, self.lines + 1)), ("a", "b", "c", "d")
            self.solution = _at_line(self.solution)
            self.mistakes = {one: _at_line(at) for one, at in self.mistakes.items()}
        for says, wrong in self.mistakes.items():
            if isinstance(wrong, dict):
                self.mistakes[says] = edited(self.solution, wrong)

    def wrong(self) -> Iterator[tuple[str, Any]]:
        """Each reply with each wrong answer that it explains."""
        for says, wrong in self.mistakes.items():
            several = self.cases and isinstance(wrong, list)
            yield from ((says, one) for one in (wrong if several else [wrong]))


AT_LINE = r"\d+ *[a-d]"


def _at_line(answer: str) -> tuple[int, str]:
    return int(answer[:-1]), answer[-1]


def edited(solution: Callable, edits: Mapping[str, str]) -> Callable:
    """The same function with other text in some places."""
    code, made = inspect.getsource(solution), {}
    for old, new in edits.items():
        if old not in code:
            raise ValueError(f"{solution.__name__} has no {old!r}")
        code = code.replace(old, new)
    exec(code, solution.__globals__, made)
    return made[solution.__name__]


RIGHT, WRONG, EMPTY = "✓", "✗", "…"


def judged(exercise: Exercise, attempt: Any) -> str:
    """Say in one sentence what is right or wrong about `attempt`."""
    mark, says = judge(exercise, attempt)
    return f"{mark} {exercise.key}  {says}"


def judge(exercise: Exercise, attempt: Any) -> tuple[str, str]:
    """A mark (`RIGHT`, `WRONG` or `EMPTY`) and the sentence that explains it."""
    if is_stub(attempt):
        return EMPTY, "Not attempted yet."
    if exercise.cases and not callable(attempt):
        return WRONG, "Answer with a function: its name, without calling it."
    if exercise.lines and isinstance(attempt, str) and re.fullmatch(AT_LINE, attempt):
        attempt = _at_line(attempt)
    if exercise.parts and isinstance(attempt, str):  # "k3, k1" for ("k3", "k1")
        attempt = attempt.strip("()[] ").split(",")
    if exercise.parts and isinstance(attempt, list | tuple):
        attempt = [_number(one) for one in attempt]
    try:
        answers = _answers(exercise, attempt)
    except NotImplementedError:
        return EMPTY, "Not attempted yet."
    except _Raised as raised:
        return WRONG, str(raised)
    known = _known(exercise, answers)
    if exercise.decimals is not None:
        known = known or _known(exercise, _rounded(answers, exercise.decimals))
    if known:
        return known
    if not exercise.cases:
        return WRONG, _of_a_value(exercise, attempt)
    if says := _of_nothing(exercise, attempt, answers):
        return WRONG, says
    right = _answers(exercise, exercise.solution)
    at = next(i for i, (a, b) in enumerate(zip(answers, right)) if not _same(a, b))
    yours, wanted, says = answers[at], right[at], UNKNOWN
    if exercise.gradient:
        if _same(yours[0], wanted[0]):
            return WRONG, (
                "The value is right, but its gradient is not. What should autograd "
                "see, and what is a constant?"
            )
        if all(_same(a[1], b[1]) for a, b in zip(answers, right)):
            says = "The gradient is right, but the value is not."
        yours, wanted = yours[0], wanted[0]
    given = _named(exercise, exercise.cases[at])
    where, yours, wanted, given = _first_apart(yours, wanted, given)
    digits = 4 if _show(yours) != _show(wanted) else 6
    given = {name: x for name, x in given.items() if not _is_long(x)}
    where = where or f"in case {at + 1}" * (not given)
    told = " and ".join(filter(None, (where, _shown(given) and f"for {_shown(given)}")))
    return WRONG, (
        f"{says} {told[0].upper()}{told[1:]} you return {_show(yours, digits)}; it "
        f"should be {_show(wanted, digits)}."
    )


UNKNOWN = "This is not one of the slips that we know."


def _known(exercise: Exercise, answers: list) -> tuple[str, str] | None:
    """The reply to a right answer, or to a mistake that the exercise declares."""
    if _same(answers, _answers(exercise, exercise.solution)):
        return RIGHT, "Right."
    for says, wrong in exercise.wrong():
        if _same(answers, _answers(exercise, wrong)) or _is_rounded(answers[0], wrong):
            return WRONG, says
    return None


def _is_rounded(answer: Any, exact: Any) -> bool:
    """Tell whether a number is `exact` with the digits that it has, two or more."""
    if not isinstance(answer, float) or not isinstance(exact, float):
        return False
    digits = len(str(answer).partition(".")[2])
    return digits > 1 and round(exact, digits) == answer


def _rounded(answers: list, decimals: int) -> list:
    if any(isinstance(one, str) for one in answers):
        return answers
    try:
        return [round(float(one), decimals) for one in answers]
    except (TypeError, ValueError):  # not a number
        return answers


def _of_nothing(exercise: Exercise, attempt: Any, answers: list) -> str:
    """Say that a function returns nothing, or an empty text if it returns something."""
    returned = [one[0] if exercise.gradient else one for one in answers]
    if any(one is not None for one in returned):
        return ""
    if "print" in getattr(getattr(attempt, "__code__", None), "co_names", ()):
        return "Your function prints, but returns nothing. Return the result instead."
    return "Your function returns nothing: no `return` was reached."


def _named(exercise: Exercise, case: tuple) -> dict[str, Any]:
    """The arguments of a case, by the names that they have in the solution."""
    return dict(zip(inspect.signature(exercise.solution).parameters, case))


def _first_apart(yours: Any, wanted: Any, given: dict) -> tuple[str, Any, Any, dict]:
    """Of long answers only the first place that differs, there and in what was given.

    Nobody compares twenty numbers with twenty others.
    """
    try:
        ours, theirs = _real(yours), _real(wanted)
    except Exception:  # the answer is no number
        return "", yours, wanted, given
    if ours.shape != theirs.shape or theirs.numel() <= FEW:
        return "", yours, wanted, given
    apart = ~torch.isclose(ours, theirs, RELATIVE, ABSOLUTE, equal_nan=True)
    place = tuple(apart.nonzero()[0].tolist())
    alike = {
        name: x[place] if getattr(x, "shape", None) == theirs.shape else x
        for name, x in given.items()
    }
    return f"at {list(place)}", ours[place], theirs[place], alike


def _is_long(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.numel() > FEW


def _of_a_value(exercise: Exercise, attempt: Any) -> str:
    """Say why a number, a word or a pair that matches no known mistake is wrong."""
    solution, parts = exercise.solution, exercise.parts
    if isinstance(attempt, str) and isinstance(solution, int | float):
        return "Answer with a number, without quotation marks."
    if parts and not (isinstance(attempt, list | tuple) and len(attempt) == len(parts)):
        return f"Answer with {len(parts)} values: {', '.join(parts)}."
    if parts:
        return _of_parts(exercise, attempt)
    if exercise.choices and not any(_same(attempt, x) for x in exercise.choices):
        return f"Choose one of {', '.join(map(_text, exercise.choices))}."
    return f"{UNKNOWN} Perhaps the hint helps. Your answer: {_show(attempt)}."


def _of_parts(exercise: Exercise, attempt: Sequence) -> str:
    """Say which part of a wrong answer is right, or which line does what it should."""
    for name, part, offered in zip(exercise.parts, attempt, exercise.choices):
        if not exercise.lines and not any(_same(part, x) for x in offered):
            return f"For “{name}” choose one of {', '.join(map(_text, offered))}."
    for name, part, wanted in zip(exercise.parts, attempt, exercise.solution):
        if _same(part, wanted):
            return f"Your answer to “{name}” is right, but the other one is not."
    if not exercise.lines:
        return "None of this is right yet. Perhaps the hint helps."
    line = attempt[0]
    innocent = f"Line {line} is right"
    if line not in range(1, exercise.lines + 1):
        return f"The listing has lines 1 to {exercise.lines}."
    for says, wrong in exercise.mistakes.items():
        if wrong[0] == line and says.startswith(innocent):
            # What follows its first sentence may speak of the reason.
            return (
                f"{says.partition('. ')[0].rstrip('.')}. And the reason is another one."
            )
    return f"Line {line} does what it should, and the reason is another one."


def _number(part: Any) -> Any:
    """Turn a number written as text into a number; keep other texts, unquoted."""
    if not isinstance(part, str):
        return part
    plain = part.strip().strip("\"'")
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(plain)
    return plain


def is_stub(attempt: Any) -> bool:
    """Tell whether nothing was written: `...`, None, or a body of `...` or `pass`."""
    if attempt is None or attempt is ...:
        return True
    if isinstance(attempt, list | tuple):
        return any(one is ... for one in attempt)
    code = getattr(attempt, "__code__", None)
    if code is None:
        return False
    idle = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
    steps = [*dis.get_instructions(code)]
    loaded = [one.argval for one in steps if "CONST" in one.opname]
    return {one.opname for one in steps} <= idle and loaded[-1:] in ([None], [...])


class _Raised(Exception):
    """The error that the reader's code raised, and the case that raised it."""


RELATIVE, ABSOLUTE = 1e-4, 1e-6
"""How far a number may be from the answer that it is taken for."""

HINTS = {
    "must match the size": " One number per row meets a table only as a column: write "
    "`[:, None]`, or `keepdim=True` in a sum or a mean.",
    "Boolean value of Tensor": " `if` asks for one truth value, and a tensor has many: "
    "write `torch.where(condition, x, y)`. And `x.min(1)` is a pair; its values alone "
    "are `x.amin(1)`.",
    "converted to Python scalars": " `math` takes one number. For a tensor write the "
    "function of torch, such as `torch.atan`.",
    "infer output dtype": " Turn truth values into numbers first, by `.double()`.",
}
"""What is usually the matter where torch raises an error with these words."""

FEW = 8
"""A reply writes out at most so many numbers of a tensor."""


@contextlib.contextmanager
def undone() -> Iterator[None]:
    """Afterwards gradients, the default dtype and all random states are as before."""
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    dice, plain = torch.get_rng_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)
        torch.set_rng_state(dice)
        random.setstate(plain)


@undone()
def _answers(exercise: Exercise, attempt: Any) -> list:
    """The attempt's answer to each case. Raises `_Raised` with the error's words."""
    if not callable(attempt):
        return [attempt for _ in exercise.cases or [()]]
    answers = []
    for case in exercise.cases or [()]:
        try:
            # Copies, because an answer may change its arguments in place.
            answer = _call(attempt, copy.deepcopy(case), exercise.gradient)
        except NotImplementedError:
            raise
        except (Exception, SystemExit) as error:  # the reader's code may raise anything
            given = f" (for {_shown(_named(exercise, case))})." if case else "."
            said = f"{type(error).__name__}: {_cut(error, str)}"
            hint = next((says for part, says in HINTS.items() if part in said), "")
            raise _Raised(f"Your code raised {said}{given}{hint}") from None
        answers.append(answer)
    return answers


def _call(attempt: Callable, case: tuple, gradient: bool) -> Any:
    """The answer, or, as a list, the answer and its gradient."""
    if not gradient:
        return attempt(*case)
    first = case[0].detach().requires_grad_()
    with torch.enable_grad():
        value = attempt(first, *case[1:])
        if isinstance(value, list) and all(isinstance(x, torch.Tensor) for x in value):
            value = torch.stack(value)
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return [value, torch.zeros_like(first)]
        # Several numbers are added up with different weights: the sum of a softmax has
        # no gradient.
        total = value.flatten() @ torch.arange(1.0, value.numel() + 1).to(value)
        (slope,) = torch.autograd.grad(total, first, allow_unused=True)
    return [value.detach(), torch.zeros_like(first) if slope is None else slope]


def _same(a: Any, b: Any) -> bool:
    """Equal up to `RELATIVE` or `ABSOLUTE`, through lists, tuples and tensors.

    Words are equal in any case, with k₃ for k3, with either apostrophe, and in brackets
    or with a full stop, as a task prints its choices.
    """
    if isinstance(a, str) and isinstance(b, str):
        return _plain(a) == _plain(b)
    if isinstance(a, bool) or isinstance(b, bool):
        a, b = _bool(a), _bool(b)
    if isinstance(a, str | bool) or isinstance(b, str | bool):
        return type(a) is type(b) and a == b
    try:
        if isinstance(a, list | tuple) and isinstance(b, list | tuple):
            return len(a) == len(b) and all(map(_same, a, b))
        a, b = _real(a), _real(b)
        close = torch.allclose(a, b, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    except Exception:  # of an answer that is no number, too large, or holds itself
        return False
    return a.shape == b.shape and close


def _plain(word: str) -> str:
    word = word.replace("’", "'")
    return unicodedata.normalize("NFKC", word).strip(" ().").casefold()


def _bool(x: Any) -> Any:
    """Turn a single truth value of torch or NumPy into Python's own."""
    kind = str(getattr(x, "dtype", "")).removeprefix("torch.")
    return bool(x) if kind == "bool" and x.ndim == 0 else x


def _real(x: Any) -> torch.Tensor:
    """Convert to double precision. A nonzero imaginary part is an error."""
    if isinstance(x, list | tuple) and len(x):
        return torch.stack([*map(_real, x)])
    if "complex" in str(getattr(x, "dtype", "")):
        if (x.imag != 0).any():
            raise ValueError
        x = x.real
    return torch.as_tensor(x, dtype=torch.float64).detach()


def _show(value: Any, digits: int = 4) -> str:
    return _cut(value, lambda value: _text(value, digits))


def _shown(given: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {_show(value)}" for name, value in given.items())


def _text(value: Any, digits: int = 4) -> str:
    if isinstance(value, torch.Tensor):
        if _is_long(value):
            return f"{' × '.join(map(str, value.shape))} numbers"
        value = value.detach().tolist()
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(one, digits) for one in value)}]"
    return repr(value)


def _cut(value: Any, text: Callable[[Any], str], length: int = 300) -> str:
    """Show any value that a reader wrote as text."""
    try:
        shown = text(value)
    except Exception as error:
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"


def exercises() -> dict[str, Exercise]:
    """All exercises by key, from the chapters' folders."""
    return _gathered("EXERCISES")


def typed_cells() -> dict[str, Exercise]:
    """The functions that a reader types in the chapters, as "03.grpo_loss"."""
    return _gathered("TYPED")


def _gathered(name: str) -> dict[str, Exercise]:
    folders = [one.name for one in pkgutil.iter_modules(course.__path__) if one.ispkg]
    known = {}
    for folder in (one for one in folders if one not in ("kit", "tour")):
        part = importlib.import_module(f"course.{folder}.exercises")
        known.update({one.key: one for one in getattr(part, name, ())})
    order = sorted(known, key=lambda key: (chapter(key), len(key), key))
    return {key: known[key] for key in order}  # 3.10 is behind 3.9


def check(key: str, attempt: Any) -> None:
    """Print what is right or wrong about `attempt`; a right answer is remembered."""
    says = verdict(key, attempt)
    if says.startswith(RIGHT):
        remember(key)
    print(says)


def verdict(key: str, attempt: Any) -> str:
    """The sentence that `check` prints."""
    known = exercises()
    return judged(known[key], attempt) if key in known else _no_exercise(key)


def solution(key: str) -> None:
    """Show a solution: a function's code, or the answer and the reason for it."""
    known = exercises() | typed_cells()
    text = solved_text(known[key]) if key in known else _no_exercise(key)
    display(Markdown(text))


def solved_text(exercise: Exercise) -> str:
    """What `solution` shows, as Markdown: a function with the helpers that it calls."""
    answer = exercise.solution
    if callable(answer):
        return f"```python\n{_source(answer)}```"
    return f"The answer is `{answer!r}`. {exercise.why}"


def _source(function: Callable) -> str:
    code = inspect.getsource(function)
    called = dict.fromkeys(re.findall(r"(?<!def )\b_\w+(?=\()", code))
    for name in called:
        if inspect.isfunction(helper := function.__globals__.get(name)):
            code = f"{_source(helper)}\n\n{code}"
    return code


def _no_exercise(key: Any) -> str:
    if not isinstance(key, str):
        return '✗ Write the number of the exercise in quotation marks, as in "3.10".'
    known = exercises() | typed_cells()
    here = [one for one in known if chapter(one) == chapter(key)]
    if not here:
        return f'✗ There is no exercise {key!r}. Write a number, as in "3.10".'
    return (
        f"✗ {key} has no check and no solution. Projects have a rubric instead; "
        f"chapter {chapter(key)} has {', '.join(here)}."
    )


def same_kind(exercise: Exercise, attempt: Callable) -> bool:
    """Require a tensor if the solution returns one: cells below calculate with it."""
    first, *_ = exercise.cases
    mine, right = (f(*copy.deepcopy(first)) for f in (attempt, exercise.solution))
    return isinstance(mine, torch.Tensor) or not isinstance(right, torch.Tensor)


def typed(key: str, attempt: Callable) -> Callable:
    """The reader's function if it is right, else the solution; prints which one.

    So the cells below run whether or not anything was typed.
    """
    known = typed_cells()
    if key not in known:
        raise KeyError(
            f"no function to type is called {key!r}; there are {', '.join(known)}"
        )
    mark, says = judge(known[key], attempt)
    if mark == RIGHT and not same_kind(known[key], attempt):
        mark, says = WRONG, "The numbers are right, but return a tensor."
    name = key.partition(".")[2]
    if mark == RIGHT:
        remember(key)
        print(f"✓ {name}  Right. The cells below run your function.")
        return attempt
    if mark == EMPTY:
        print(f"… {name}  Nothing typed yet: the cells below run the solution.")
    else:
        print(f"✗ {name}  {says} Until it is right, the cells below run the solution.")
    return known[key].solution
