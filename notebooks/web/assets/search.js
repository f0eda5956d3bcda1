/* The search: stems, one typing error, other words for the same thing, the glossary
   first. The index is read when somebody first searches; nothing needs a network. */
"use strict";

(() => {
  const STOP = new Set(
    ("a about all an and are as at be by can could do does for from get has have how i if in into " +
      "is it its me my of on or out should that the their there this to use was what when where " +
      "which who why will with you your").split(" "),
  );
  const SAME = [
    "quiz exercise",
    "colab kaggle binder codespaces jupyterlab",
    "install setup pip requirements",
    "loss objective",
    "zero 0",
    "moe mixture experts",
    "critic value",
    "network model",
    "gpu cuda",
    "oom memory",
    "hack game exploit cheat",
    "reward paid",
    "length long short",
    "error fault bug",
    "citation bibtex",
    "divergence distance",
    "vllm sglang sampler",
    "cheatsheet cheat sheet",
    "off stale",
    "collapse falls",
    "dpo preference",
  ].map((group) => group.split(" ").map(stem));
  const OTHER = 0.5; // what another word counts, or one that only begins so
  const SHOWN = 12;
  const OF_A_PAGE = 2; // hits, so that the third is another page
  const ROOM = 170; // letters of an excerpt

  /* "normalised", "normaliser", "normalization" → "normalis"; "clipping", "clips" → "clip". */
  function stem(word) {
    let short = word.replace(/iz(?=e|ing|ation)/, "is").replace(/['’]s?$/, "");
    if (short.length < 4) return short;
    short = short.replace(/ies$/, "y").replace(/([sxz]|ch|sh)es$/, "$1").replace(/([^su])s$/, "$1");
    for (const end of [/ations?$/, /ing$/, /ed$/, /ers?$/, /ly$/, /e$/]) {
      const cut = short.replace(end, "");
      if (cut !== short && cut.length > 2 && /[aeiouy]/.test(cut)) {
        short = cut;
        break;
      }
    }
    return short.replace(/([bdfgmnprt])\1$/, "$1");
  }

  const WORD = /[\p{L}\p{N}@]+(?:['’]\p{L}+)?/gu;
  const words = (text) => [...text.toLowerCase().matchAll(WORD)];
  const stems = (text) => words(text).map(([word]) => stem(word));

  /* One letter more, less or another, or two that changed places. */
  function oneErrorApart(a, b) {
    if (Math.abs(a.length - b.length) > 1) return false;
    let at = 0;
    while (at < a.length && a[at] === b[at]) at++;
    const rest = (text, skip) => text.slice(at + skip);
    return (
      rest(a, 1) === rest(b, 1) ||
      rest(a, 1) === rest(b, 0) ||
      rest(a, 0) === rest(b, 1) ||
      (a[at] === b[at + 1] && a[at + 1] === b[at] && rest(a, 2) === rest(b, 2))
    );
  }

  /* A function from a query to hits, best first, and the stems that were meant. */
  function searcher(rows) {
    const vocabulary = new Map(); // stem → in how many sections
    const sections = rows.map(([file, page, anchor, heading, text]) => {
      const parts = [page, heading, text].map(stems);
      const counts = new Map();
      for (const one of parts[2]) counts.set(one, (counts.get(one) ?? 0) + 1);
      for (const one of new Set(parts.flat())) vocabulary.set(one, (vocabulary.get(one) ?? 0) + 1);
      const joined = parts.map((part) => ` ${part.join(" ")} `);
      return { file, page, anchor, heading, text, counts, joined };
    });

    /* Stems that a word may mean, with what each counts. */
    function meant(word) {
      const own = stem(word);
      const found = new Map();
      for (const group of SAME)
        if (group.includes(own)) for (const one of group) found.set(one, OTHER);
      if (vocabulary.has(own)) found.set(own, 1);
      if (found.size || own.length < 3) return found;
      const near = [...vocabulary.keys()].filter((one) => one.startsWith(own));
      const errors = () =>
        [...vocabulary.keys()].filter((one) => one.length > 3 && oneErrorApart(own, one));
      for (const one of near.length ? near : errors()) found.set(one, OTHER);
      return found;
    }

    const rare = (one) => Math.log(1 + sections.length / (vocabulary.get(one) ?? 1e9));

    function points(section, asked, phrase) {
      const [page, heading, text] = section.joined;
      let sum = 0;
      let matched = 0;
      for (const term of asked) {
        let best = 0;
        for (const [one, counts] of term) {
          const times = section.counts.get(one) ?? 0;
          const inHeading = heading.includes(` ${one} `);
          const inTitle = page.includes(` ${one} `);
          const sure = 4 * inHeading + 3 * inTitle + (3 * times) / (times + 2);
          best = Math.max(best, counts * rare(one) * sure);
        }
        sum += best;
        matched += best > 0;
      }
      if (!matched) return 0;
      const all = asked.every((term) => [...term.keys()].some((one) => heading.includes(` ${one} `)));
      if (asked.length > 1 && all) sum += 12;
      if (asked.length > 1) sum += 8 * text.includes(phrase) + 12 * heading.includes(phrase);
      if (section.page === "Glossary") {
        const term = heading.trim().split(" ");
        const whole = ` ${term.slice(0, asked.length).join(" ")} ` === phrase;
        sum = whole ? sum + 40 : 0.6 * sum;
      } else {
        const title = page.replace(/^ \d\w* /, " ");
        if (title === phrase || heading === phrase) sum += 14;
        else if (title.startsWith(phrase)) sum += 8;
        if (/^(\d|tour)/.test(section.file)) sum *= 1.2; // a chapter explains what others list
        if (/^(exercises|elsewhere|misreadings|paper and toy|summary)$/i.test(section.heading))
          sum *= heading.includes(phrase) ? 1 : 0.6;
      }
      return sum * (matched / asked.length) ** 2;
    }

    return (query) => {
      const typed = words(query).map(([word]) => word);
      const said = typed.filter((word) => !STOP.has(word));
      const terms = (said.length ? said : typed).map(meant);
      const known = terms.filter((term) => term.size);
      if (!known.length) return { hits: [], meant: new Set() };
      const first = (term) => [...term].sort(([, a], [, b]) => b - a)[0][0];
      const phrase = ` ${known.map(first).join(" ")} `;
      const ranked = sections
        .map((section) => [points(section, terms, phrase), section])
        .filter(([sum]) => sum > 0)
        .sort(([a], [b]) => b - a);
      const seen = {};
      const hits = ranked
        .map(([, section]) => section)
        .filter(({ page }) => (seen[page] = (seen[page] ?? 0) + 1) <= OF_A_PAGE)
        .slice(0, SHOWN);
      return { hits, meant: new Set(known.flatMap((term) => [...term.keys()])) };
    };
  }

  /* The text with what was meant marked; nothing in it is read as HTML. */
  function marked(text, meant) {
    const parts = [];
    let end = 0;
    for (const found of text.matchAll(WORD)) {
      if (!meant.has(stem(found[0].toLowerCase()))) continue;
      const mark = document.createElement("mark");
      mark.textContent = found[0];
      parts.push(text.slice(end, found.index), mark);
      end = found.index + found[0].length;
    }
    return [...parts, text.slice(end)];
  }

  /* Where the most different words that were meant stand together. */
  function excerpt(text, meant) {
    const found = [...text.matchAll(WORD)]
      .map((word) => [word.index, stem(word[0].toLowerCase())])
      .filter(([, one]) => meant.has(one));
    const different = (i) => {
      const near = found.filter(([at]) => at >= found[i][0] && at < found[i][0] + ROOM - 40);
      return new Set(near.map(([, one]) => one)).size;
    };
    let best = 0;
    found.forEach((_, i) => {
      if (i < 60 && different(i) > different(best)) best = i;
    });
    const at = found.length ? found[best][0] : 0;
    const from = at < 40 ? 0 : text.indexOf(" ", at - 40) + 1;
    const cut = text.slice(from, from + ROOM);
    return (from ? "… " : "") + cut + (from + ROOM < text.length ? " …" : "");
  }

  const query = document.getElementById("query");
  const results = document.getElementById("results");
  let find = null;
  let loading = false;

  window.searchIndex = (rows) => {
    find = searcher(rows);
    show();
  };

  function load() {
    if (loading) return;
    loading = true;
    document.head.append(Object.assign(document.createElement("script"), { src: "search-index.js" }));
  }

  function item(section, meant) {
    const link = document.createElement("a");
    link.href = `${section.file}#${section.anchor}`;
    const same = section.page === section.heading;
    link.append(...marked(same ? section.page : `${section.page} › ${section.heading}`, meant));
    const said = document.createElement("p");
    said.append(...marked(excerpt(section.text, meant), meant));
    const made = document.createElement("li");
    made.append(link, said);
    return made;
  }

  function show() {
    const asked = query.value.trim();
    results.hidden = !asked;
    if (!asked || !find) return;
    const { hits, meant } = find(asked);
    const count = document.createElement("p");
    const number = hits.length === SHOWN ? `The best ${SHOWN}` : hits.length || "Nothing";
    const keys = document.createElement("span");
    keys.textContent = hits.length ? ". ↓ ↑ choose, Enter opens" : "";
    count.append(`${number} found`, keys);
    const list = document.createElement("ul");
    list.append(...hits.map((section) => item(section, meant)));
    results.replaceChildren(count, list);
  }

  query.addEventListener("focus", load);
  query.addEventListener("input", () => {
    load();
    show();
  });
  query.form.addEventListener("submit", (event) => {
    event.preventDefault();
    results.querySelector("a")?.click();
  });

  /* Down from the field into the hits, up again out of the first. */
  function step(by) {
    const places = [query, ...results.querySelectorAll("a")];
    const at = places.indexOf(document.activeElement) + by;
    places[Math.min(Math.max(at, 0), places.length - 1)].focus();
  }
  for (const one of [query, results]) {
    one.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by || results.hidden) return;
      event.preventDefault();
      step(by);
    });
  }
  results.addEventListener("click", (event) => {
    if (event.target.closest("a")) results.hidden = true; // the place may be on this page
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !results.hidden) {
      query.value = "";
      show();
      query.focus();
    } else if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) {
      event.preventDefault();
      query.focus();
    }
  });
})();
