// A run's log by the rules of symptoms.toml: logs.py and symptoms.py of refimpl.interop
// once more, function by function under the same names. Tests compare what both say.
(() => {
  const at = (id) => document.getElementById(id);
  const RULES = JSON.parse(at("rules").textContent);
  const own = (known, name, otherwise) => (Object.hasOwn(known, name) ? known[name] : otherwise);
  const isRow = (one) => typeof one === "object" && one !== null && !Array.isArray(one);

  // Numbers as Python writes them: what lies exactly between two goes to the even one.

  function even(x, how, digits) {
    const [text, whole] = [x[how](digits), x[how](100)];
    const [number, power] = whole.split("e");
    const point = number.indexOf(".") + (digits && digits + 1);
    const [kept, rest] = [number.slice(0, point), number.slice(point).replace(".", "")];
    const tie = /^50*$/.test(rest) && "02468".includes(kept.at(-1));
    return tie ? kept + (power ? `e${power}` : "") : text;
  }

  const odd = (x) => (Number.isNaN(x) ? "nan" : x > 0 ? "inf" : "-inf");
  const fixed = (x, digits) => (Number.isFinite(x) ? even(x, "toFixed", digits) : odd(x));

  function general(x, digits = 6) {
    if (!Number.isFinite(x)) return odd(x);
    if (x === 0) return Object.is(x, -0) ? "-0" : "0";
    const [mantissa, power] = even(x, "toExponential", digits - 1).split("e");
    const bare = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
    if (power >= -4 && power < digits) return bare(even(x, "toFixed", digits - 1 - power));
    return `${bare(mantissa)}e${power[0]}${power.slice(1).padStart(2, "0")}`;
  }

  const FORMS = {
    "": String,
    g: (x) => general(x),
    ".3g": (x) => general(x, 3),
    ".0%": (x) => `${fixed(100 * x, 0)}%`,
  };
  const format = (words, values) =>
    words.replace(/\{([^:}]+):?([^}]*)\}/g, (_, name, form) => FORMS[form](values[name]));

  // logs.py

  const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
  const NO_NUMBER = /^([+-]?)(inf|infinity|nan)$/i;
  const LINES = /\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/;

  function number(value) {
    if (typeof value === "number" || typeof value === "boolean") return Number(value);
    if (typeof value !== "string") return null;
    const text = value.trim().replace(/(\d)_(?=\d)/g, "$1");
    if (NUMBER.test(text)) return Number(text);
    const [, sign, name] = text.match(NO_NUMBER) ?? [];
    if (!name) return null;
    return name.toLowerCase() === "nan" ? NaN : sign === "-" ? -Infinity : Infinity;
  }

  // Python's JSON knows NaN and Infinity, which trainers write; they come as texts.
  const NAMED = /"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b/g;

  function parsed(text) {
    try {
      return JSON.parse(text.replace(NAMED, (one) => (one[0] === '"' ? one : `"${one}"`)));
    } catch {
      return null;
    }
  }

  const splitLines = (text) => {
    const lines = text.split(LINES);
    return lines.at(-1) === "" ? lines.slice(0, -1) : lines;
  };

  /** Lines of cells between `comma`s; a quoted cell may go on in the next line. */
  function cellsOf(text, comma) {
    const [rows, state] = [[], { row: [], cell: "", quoted: false }];
    const put = () => {
      state.row.push(state.cell);
      state.cell = "";
    };
    for (const line of splitLines(text)) {
      if (line === "" && !state.quoted) {
        rows.push([]);
        continue;
      }
      for (let i = 0; i < line.length; i++) {
        const sign = line[i];
        if (state.quoted) {
          if (sign !== '"') state.cell += sign;
          else if (line[i + 1] === '"') state.cell += line[i++];
          else state.quoted = false;
        } else if (sign === '"' && state.cell === "") state.quoted = true;
        else if (sign === comma) put();
        else state.cell += sign;
      }
      if (state.quoted) continue;
      put();
      rows.push(state.row);
      state.row = [];
    }
    if (state.quoted) {
      put();
      rows.push(state.row);
    }
    return rows;
  }

  function table(text) {
    const [first = ""] = splitLines(text);
    const count = (sign) => first.split(sign).length;
    const comma = [",", ";", "\t"].reduce((a, b) => (count(b) > count(a) ? b : a));
    const [names = [], ...rows] = cellsOf(text, comma);
    const known = [...names.entries()].filter(([, name]) => name);
    return rows
      .filter((row) => row.length)
      .map((row) => Object.fromEntries(known.map(([i, name]) => [name.trim(), row[i]])));
  }

  function rowsOf(text) {
    let whole = parsed(text);
    if (isRow(whole)) whole = own(whole, "log_history", [whole]);
    else if (whole === null && text.trimStart().startsWith("{"))
      whole = splitLines(text).map(parsed);
    else if (whole === null) whole = table(text);
    return Array.isArray(whole) ? whole.filter(isRow) : [];
  }

  function inOrder(rows, name) {
    const steps = rows.map((row) => number(own(row, name, null)));
    if (!steps.every(Number.isFinite)) return rows;
    const last = new Map(rows.map((row, i) => [steps[i], row]));
    return [...last.keys()].sort((a, b) => a - b).map((step) => last.get(step));
  }

  function flat(row) {
    if (isRow(row.data)) row = { step: row.step, ...row.data };
    const [most, least] = ["max", "min"].map((one) => number(row[`critic/score/${one}`]));
    if (most === null || least === null) return row;
    return { ...row, "critic/score/range": most - least };
  }

  function ours(name) {
    name = name.replace(/^train\//, "");
    if (name.startsWith("val-core/") && name.includes("/mean@")) return "accuracy";
    return own(RULES.names, name, name);
  }

  function read(text, path) {
    const logged = rowsOf(text).map(flat);
    if (!logged.length && /^[{[]/.test(text.trimStart()))
      throw new Error(`${path} holds no rows, or is JSON that is cut off; ${RULES.expected}`);
    const names = [...new Set(logged.flatMap(Object.keys))].filter((name) => name);
    names.sort((a, b) => (ours(a) !== a) - (ours(b) !== b));
    const called = new Map();
    for (const name of names) if (!called.has(ours(name))) called.set(ours(name), name);
    const cell = (row, name) => number(own(row, name, null));
    const paid = logged.filter((row) => cell(row, called.get("reward")) !== null);
    const rows = inOrder(paid, called.get("step"));
    if (rows.length < RULES.fewest) {
      const few = [...called.values()].slice(0, 8).join(", ") || "no names";
      throw new Error(
        `${path} has ${rows.length} rows with a reward, of ${logged.length} (with ${few}), ` +
          `and ${RULES.fewest} are the fewest that show a beginning and an end; ` +
          `${RULES.expected}. Log more often (logging_steps=1), or name its columns so`,
      );
    }
    const columns = new Map();
    for (const [name, theirs] of called) {
      const column = rows.map((row) => cell(row, theirs));
      if (column.some((value) => value !== null)) columns.set(name, column);
    }
    const steps = rows.map((_, i) => columns.get("step")?.[i] ?? i);
    return { path, steps, columns, called };
  }

  const seen = (log, name) =>
    [...(log.columns.get(name) ?? []).entries()].filter(([, x]) => Number.isFinite(x));

  // symptoms.py

  /** The sum, rounded once, as math.fsum: Shewchuk's partial sums. */
  function fsum(values) {
    if (!values.every(Number.isFinite)) return values.reduce((a, b) => a + b, 0);
    const parts = [];
    for (let x of values) {
      let kept = 0;
      for (let y of [...parts]) {
        if (Math.abs(x) < Math.abs(y)) [x, y] = [y, x];
        const high = x + y;
        const low = y - (high - x);
        if (low) parts[kept++] = low;
        x = high;
      }
      parts.length = kept;
      parts.push(x);
    }
    let high = parts.pop() ?? 0;
    let low = 0;
    while (parts.length && !low) {
      const [x, y] = [high, parts.pop()];
      high = x + y;
      low = y - (high - x);
    }
    const next = parts.at(-1) ?? 0;
    const twice = high + 2 * low;
    return (low * next > 0 && twice - high === 2 * low ? twice : high) + 0; // no -0
  }

  const fmean = (x) => fsum(x) / x.length;
  const quarter = (x) => Math.max(1, Math.floor(x.length / 4));
  const early = (x) => fmean(x.slice(0, quarter(x)));
  const late = (x) => early([...x].reverse());
  const largest = (x) => Math.max(...x);

  function median(x) {
    const sorted = [...x].sort((a, b) => a - b);
    const half = Math.floor(x.length / 2);
    return x.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  }

  const times = (x, base) => x.map((v) => (base > 0 ? v / base : v > base ? Infinity : 1));

  function inNoise(x) {
    const usual = median(x.slice(1).map((v, i) => Math.abs(v - x[i])));
    const [error, begin] = [(1.483 * usual) / Math.sqrt(quarter(x)), early(x)];
    return x.map((v) => (error ? (v - begin) / error : v - begin ? (v - begin) * Infinity : 0));
  }

  const spikes = (x) => x.map((v, i) => (i > 2 ? times([v], median(x.slice(0, i)))[0] : 1));

  const same = (x) => x;
  const READ = {
    first: [same, (x) => x[0]],
    early: [same, early],
    late: [same, late],
    largest: [(x) => x.map(Math.abs), largest],
    factor: [(x) => times(x, early(x)), late],
    "since first": [(x) => times(x, x[0]), late],
    rise: [inNoise, late],
    move: [inNoise, (x) => Math.abs(late(x))],
    spike: [spikes, largest],
    broken: [same, fmean],
  };

  /** {strength, since, words}, strength 0 where it does not fit; null: not judged. */
  function fits(log, check) {
    let cells = seen(log, check.of);
    if (check.read === "broken")
      cells = [...(log.columns.get(check.of) ?? []).entries()]
        .filter(([, v]) => v !== null)
        .map(([i, v]) => [i, Number(!Number.isFinite(v))]);
    const only = !("only" in check) || fact(log, check.only);
    if (cells.length < 2 || only === null) return null;
    const [rows, x] = [cells.map(([i]) => i), cells.map(([, v]) => v)];
    const [byRow, asOne] = READ[check.read];
    const [series, sign] = [byRow(x), "over" in check ? 1 : -1];
    const [q, limit] = [asOne(series), check.over ?? check.under];
    const excused = "unless" in check && fact(log, check.unless);
    if (!(sign * (q - limit) > 0 && only) || excused) return { strength: 0, since: 0, words: "" };
    const [least, most] = [Math.abs(q), Math.abs(limit)].sort((a, b) => a - b);
    let strength = q * limit < 0 ? 1 : 1 - least / most;
    if ("worst" in check) strength = (q - limit) / (check.worst - limit);
    const beyond = series.map((v) => sign * (v - limit) > 0);
    const after = (i) => beyond.slice(i).filter(Boolean).length;
    const stays = beyond.map((b, i) => b && 2 * after(i) >= x.length - i);
    stays[0] &&= check.read === "late";
    const since = (asOne === late && stays.includes(true) ? stays : beyond).indexOf(true);
    const top = series.indexOf(largest(series)); // the first of them
    const noise = Number.isFinite(q) ? `${fixed(q, 1)} standard errors` : "where nothing varied";
    const words = format(RULES.read[check.read], {
      q, "x[0]": x[0], early: early(x), late: late(x), top: x[top],
      step: log.steps[rows[top]], errors: noise,
    });
    return { strength, since: rows[since], words: `${log.called.get(check.of)} ${words}` };
  }

  function fact(log, name) {
    const judged = fits(log, RULES.facts[name]);
    return judged && judged.strength > 0;
  }

  function findings(log) {
    const span = log.steps.length / RULES.together;
    const found = [];
    for (const row of RULES.row) {
      const judged = row.checks.map((check) => fits(log, check)).filter((one) => one?.strength);
      if (judged.length)
        found.push({
          row,
          harmless: row.harmless ?? false,
          strength: largest(judged.map((one) => one.strength)),
          since: Math.min(...judged.map((one) => one.since)),
          words: judged.map((one) => one.words).join("; "),
        });
    }
    const began = (one) => Math.floor(one.since / span);
    return found.sort(
      (a, b) => a.harmless - b.harmless || began(a) - began(b) || b.strength - a.strength,
    );
  }

  const unjudged = (log) =>
    RULES.row
      .filter((row) => row.checks.every((check) => fits(log, check) === null))
      .map((row) => [row.symptom, [...new Set(row.checks.map((check) => check.of))]]);

  /** Lines of the report: what kind each is, and its text. */
  function report(log, found) {
    const { steps } = log;
    const ends = `steps ${general(steps[0])} to ${general(steps.at(-1))}`;
    const lines = [["head", `${log.path}: ${steps.length} rows, ${ends}`]];
    if (found.every((one) => one.harmless))
      lines.push(["head", "Nothing is named as wrong, which is no proof that all is well."]);
    found.forEach((one, i) => {
      const how = one.harmless ? "right if meant" : `strength ${fixed(one.strength, 2)}`;
      const { symptom, cause, chapter, first, next } = one.row;
      const from = general(steps[one.since]);
      lines.push(
        ["row", `${i + 1}. ${symptom} (${how}, from step ${from})`],
        ["part", `seen: ${one.words}`],
        ["part", `likely: ${cause} (chapter ${chapter})`],
        ["part", `first: ${first}`],
        ["part", `then measure: ${next}`],
      );
    });
    const missing = unjudged(log);
    if (missing.length) lines.push(["rest", "Not judged, because it is not in this log:"]);
    for (const [symptom, of] of missing) lines.push(["part", `${symptom}: ${of.join(", ")}`]);
    return [...lines, ["rest", RULES.unseen]];
  }

  // The page

  const { make, draw } = window.elements;

  /** A line of the report; its label stands back, its chapters are links. */
  function shown([kind, text]) {
    const line = make("p", { className: kind });
    const [, label = "", rest] =
      kind === "part" ? text.match(/^(seen:|likely:|first:|then measure:)?(.*)$/s) : [, "", text];
    if (label) line.append(make("span", {}, label));
    const [, before, chapters] = rest.match(/^(.*\(chapter )([\w, ]+\))$/s) ?? [, rest, ""];
    line.append(before);
    for (const part of chapters.split(/(\w+)/)) {
      const file = own(RULES.chapters, part);
      line.append(file ? make("a", { href: file }, part) : part);
    }
    return line;
  }

  const [ACROSS, DOWN, LEFT, RIGHT, TOP, BOTTOM] = [310, 150, 54, 54, 12, 22];

  /** The curves of a panel that the log has, each on its side, as `six_curves.draw`. */
  function curvesOf(log, names, side, from) {
    const there = names.map((name) => ({ name, side, points: seen(log, name) }));
    const drawn = there
      .map((one) => ({
        ...one,
        name: log.called.get(one.name),
        points: one.points.map(([i, y]) => [log.steps[i], y]).filter(([x]) => Number.isFinite(x)),
      }))
      .filter((one) => one.points.length);
    const y = drawn.flatMap((one) => one.points.map(([, value]) => value));
    const [low, high] = [Math.min(...y), Math.max(...y)];
    return drawn.map((one, i) => ({ ...one, low, high, look: `c${from + i} ${side}` }));
  }

  const sentence = ({ name, points }) => {
    const y = points.map(([, value]) => value);
    const [first, last, low, high] = [y[0], y.at(-1), Math.min(...y), Math.max(...y)];
    const told = [first, last, low, high].map((value) => general(value, 3));
    return `${name}: ${told[0]} first, ${told[1]} last, between ${told[2]} and ${told[3]}.`;
  };

  function panel(log, { title, left, right = [] }, began) {
    const curves = [...curvesOf(log, left, "left", 0), ...curvesOf(log, right, "right", 3)];
    const missing = curves.some((one) => one.side === "left")
      ? ""
      : ` (not in this log: ${title.split(" | ")[0]})`;
    const figure = make("figure", {}, make("figcaption", {}, title + missing));
    if (!curves.length) return figure;
    const steps = curves.flatMap((one) => one.points.map(([x]) => x));
    const [start, end] = [Math.min(...steps), Math.max(...steps)];
    const x = (step) => LEFT + ((step - start) / (end - start || 1)) * (ACROSS - LEFT - RIGHT);
    const y = (value, { low, high }) =>
      DOWN - BOTTOM - (high > low ? (value - low) / (high - low) : 0.5) * (DOWN - TOP - BOTTOM);
    const label = `${title}, by step. ${curves.map(sentence).join(" ")}`;
    const svg = draw("svg", { viewBox: `0 0 ${ACROSS} ${DOWN}`, role: "img", "aria-label": label });
    svg.append(
      draw("path", { class: "axis", d: `M${LEFT} ${TOP}V${DOWN - BOTTOM}H${ACROSS - RIGHT}` }),
      draw("text", { x: LEFT, y: DOWN - 6 }, general(start)),
      draw("text", { x: ACROSS / 2, y: DOWN - 6, "text-anchor": "middle" }, "step"),
      draw("text", { x: ACROSS - RIGHT, y: DOWN - 6, "text-anchor": "end" }, general(end)),
    );
    for (const side of ["left", "right"]) {
      const one = curves.find((curve) => curve.side === side);
      if (!one) continue;
      const place = side === "left" ? [LEFT - 4, "end"] : [ACROSS - RIGHT + 4, "start"];
      for (const value of new Set([one.high, one.low]))
        svg.append(
          draw("text", { x: place[0], y: y(value, one) + 4, "text-anchor": place[1] }, general(value, 3)),
        );
    }
    if (began >= start && began <= end)
      svg.append(draw("path", { class: "began", d: `M${x(began)} ${TOP}V${DOWN - BOTTOM}` }));
    for (const one of curves) {
      const points = one.points.map(([s, v]) => `${x(s).toFixed(1)} ${y(v, one).toFixed(1)}`);
      svg.append(draw("path", { class: one.look, d: `M${points.join("L")}h0` }));
    }
    const legend = curves.map((one) => {
      const line = draw("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" });
      line.append(draw("path", { class: one.look, d: "M0 4H26" }));
      return make("li", {}, line, one.name + (one.side === "right" ? " (right axis)" : ""));
    });
    figure.append(svg, make("ul", {}, ...legend));
    return figure;
  }

  function panels(log, found) {
    const began = found.length ? log.steps[found[0].since] : NaN;
    const every = RULES.panel.map((one) => panel(log, one, began));
    const dotted = found.length ? " The dotted line is where the first row begins." : "";
    const said = make("p", { className: "rest" }, `The six curves that decide.${dotted}`);
    return [said, make("div", { className: "panels" }, ...every)];
  }

  /** What the page shows of a log; of a file that is none, a sentence. */
  function show(text, path) {
    try {
      const log = read(text, path);
      const found = findings(log);
      const lines = make("div", { id: "report" }, ...report(log, found).map(shown));
      at("said").replaceChildren(lines, ...panels(log, found));
      at("heard").textContent = `${path} is read; ${found.length} rows of the table fit.`;
    } catch (error) {
      refuse(error.message);
    }
  }

  function refuse(sentence) {
    const lines = make("div", { id: "report" }, make("p", { className: "bad" }, sentence));
    at("said").replaceChildren(lines);
    at("heard").textContent = sentence;
  }

  async function open(file) {
    if (!file) return;
    const bytes = await file.arrayBuffer().catch(() => null);
    try {
      show(new TextDecoder("utf-8", { fatal: true }).decode(bytes), file.name);
    } catch {
      const why = bytes ? "it is no text in UTF-8" : "it is no file";
      refuse(`${file.name} cannot be read (${why}); ${RULES.expected}`);
    }
  }

  const over = (yes) => document.body.classList.toggle("over", yes);
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    over(true);
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget ?? over(false));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    over(false);
    open(event.dataTransfer.files[0]);
  });
  at("log").addEventListener("change", () => {
    open(at("log").files[0]);
    at("log").value = ""; // the same file may be chosen again
  });
  at("example").addEventListener("click", () => show(RULES.example.text, RULES.example.name));
  at("reader").hidden = false;
})();
