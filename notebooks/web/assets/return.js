/* What a reader comes back to: ticks and "continue", the section in view, and words and
   symbols explained where they stand. Whatever is kept is kept by this browser. */
"use strict";

(() => {
  const KEY = "course";
  const END = "end"; // a chapter that was read to its end
  const OPEN = 200; // ms over a word before it is explained
  const make = (name, settings = {}, parts = []) => {
    const made = Object.assign(document.createElement(name), settings);
    made.append(...parts);
    return made;
  };

  /* {read: {file: "begun" or "end"}, last: {file, anchor, title}}; some browsers keep
     nothing for pages from a folder, and then nothing is remembered. */
  function kept() {
    try {
      const found = JSON.parse(localStorage.getItem(KEY)) ?? {};
      return { read: {}, ...found };
    } catch {
      return { read: {} };
    }
  }
  function keep(change) {
    try {
      localStorage.setItem(KEY, JSON.stringify({ ...kept(), ...change }));
    } catch {
      // Then this page is as new as every other.
    }
  }

  const links = [...document.querySelectorAll(".menu > details > ul > li > a")];
  const here = links.find((link) => link.getAttribute("aria-current") === "page");
  const fileOf = (link) => link.getAttribute("href");
  const chapters = links.filter((link) => /^(\d|tour)/.test(fileOf(link)));

  const ofExercise = (key) => key.startsWith("refimpl:exercise:");
  /* How many exercises are done, by the chapter's number: "refimpl:exercise:3.7" is one. */
  function solved() {
    const found = {};
    try {
      for (const key of Object.keys(localStorage)) {
        const number = /^refimpl:exercise:(\w+)\./.exec(key)?.[1];
        if (number) found[number] = (found[number] ?? 0) + 1;
      }
    } catch {
      // Nothing is kept here.
    }
    return found;
  }

  function tick() {
    const { read } = kept();
    const done = solved();
    for (const link of chapters) {
      link.querySelector(".tick")?.remove();
      const state = read[fileOf(link)];
      const count = done[/^0?(\w+?)[_.]/.exec(fileOf(link))[1]];
      const [sign, said] = state === END ? [" ✓", ["read"]] : state ? [" ½", ["begun"]] : ["", []];
      if (count) said.push(count === 1 ? "1 exercise done" : `${count} exercises done`);
      if (!said.length) continue;
      const mark = make("span", { className: "tick", textContent: sign + (count ? ` · ${count}` : "") });
      mark.setAttribute("role", "img");
      mark.setAttribute("aria-label", `, ${said.join(", ")}`);
      mark.title = said.join(", ");
      link.append(mark);
    }
  }
  addEventListener("exercise", tick);

  function reached(state) {
    const file = fileOf(here);
    const { read } = kept();
    if (read[file] === END || read[file] === state) return;
    keep({ read: { ...read, [file]: state } });
    tick();
  }

  /* The heading that was passed last, marked in the menu. */
  const inside = [...document.querySelectorAll(".menu ul ul a")];
  const headings = inside.map((link) => document.getElementById(fileOf(link).slice(1)));
  let marked = null;
  function follow() {
    const passed = headings.filter((one) => one && one.getBoundingClientRect().top < 130);
    const bottom = scrollY > 0 && scrollY + innerHeight > document.body.scrollHeight - 4;
    const link = inside[bottom ? inside.length - 1 : passed.length - 1] ?? null;
    if (link === marked) return;
    marked?.removeAttribute("aria-current");
    marked = link;
    if (!link) return;
    link.setAttribute("aria-current", "location");
    const menu = document.querySelector(".menu");
    const [top, at] = [menu, link].map((one) => one.getBoundingClientRect());
    if (menu.scrollHeight > menu.clientHeight && (at.top < top.top || at.bottom > top.bottom))
      menu.scrollTop += at.top - top.top - menu.clientHeight / 3;
    if (!chapters.includes(here)) return;
    reached("begun");
    const title = `${here.firstChild.data.trim()}: ${link.textContent}`;
    keep({ last: { file: fileOf(here), anchor: fileOf(link), title } });
  }
  let waiting = false;
  addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      follow();
    });
  });

  const end = document.querySelector(".turn");
  if (end && chapters.includes(here))
    new IntersectionObserver((seen) => {
      if (scrollY > 0 && seen.some((one) => one.isIntersecting)) reached(END);
    }).observe(end);

  /* On the start page: where one was, and a way to forget it. */
  function resume() {
    const start = document.querySelector(".door-start");
    const { last, read } = kept();
    const at = chapters.findIndex((link) => fileOf(link) === last?.file);
    if (!start || at < 0) return;
    const next = read[last.file] === END ? chapters[at + 1] : null;
    const place = next ? { file: fileOf(next), anchor: "", title: next.firstChild.data } : last;
    const done = Object.values(read).filter((state) => state === END).length;
    const forget = make("button", { type: "button", textContent: "Forget this" });
    const more = make("a", {
      href: `${place.file}${place.anchor}`,
      textContent: `Continue with ${place.title.trim()}`,
    });
    const said = make("small", { textContent: `${done} of ${chapters.length} chapters read. ` }, [forget]);
    const box = make("p", { className: "resume" }, [more, " ", said]);
    forget.addEventListener("click", () => {
      keep({ read: {}, last: null });
      Object.keys(localStorage).filter(ofExercise).forEach((key) => localStorage.removeItem(key));
      box.remove();
      tick();
    });
    start.after(box);
  }

  tick();
  resume();
  follow();

  /* Words and symbols, explained where they stand. */
  let told = null;
  function toldOf() {
    told ??= new Promise((done) => {
      window.courseGlossary = done;
      document.head.append(make("script", { src: "glossary.js" }));
    });
    return told;
  }

  const note = make("div", { id: "note", hidden: true });
  note.setAttribute("role", "tooltip");
  document.body.append(note);
  let shown = null;
  let timer = 0;

  /* The symbols of a formula that the page of notation has, each once. Upright letters
     are those of a name, such as KL. */
  function symbols(formula, { symbols: known, otherwise }) {
    const parts = [...formula.querySelectorAll('mi:not([mathvariant="normal"]), mover, msub')];
    const other = otherwise[location.pathname.split("/").at(-1).replace(".html", "")] ?? "";
    const means = (text) => known[text] && !other.includes(text);
    const found = parts.map((part) => part.textContent.trim()).filter(means);
    return [...new Set(found)].filter((text) => !(text === "A" && found.includes("A^")));
  }

  async function show(place) {
    const glossary = await toldOf();
    const lines = place.matches("a.term")
      ? [glossary.terms[decodeURIComponent(place.hash.slice(1))]]
      : symbols(place, glossary).map((one) => glossary.symbols[one]);
    if (!lines[0]) return;
    hide();
    const items = lines.map(([term, meaning]) => {
      const line = document.createElement("p");
      line.innerHTML = `<b>${term}</b>: ${meaning}`; // made with the site
      return line;
    });
    const href = place.matches("a.term") ? place.getAttribute("href") : "notation.html#symbols";
    items.push(make("p", {}, [make("a", { href, textContent: "Notation and glossary" })]));
    note.replaceChildren(...items);
    note.hidden = false;
    shown = place;
    place.setAttribute("aria-describedby", "note");
    const at = place.getBoundingClientRect();
    const wide = document.documentElement.clientWidth;
    // A side note, where the margin has room for it, hides no words.
    const margin = place.closest("p, li, table").getBoundingClientRect().right + 24;
    const aside = wide - margin > 260;
    note.style.maxWidth = aside ? `min(24rem, ${wide - margin - 12}px)` : "";
    let left = Math.min(Math.max(at.left, 8), wide - note.offsetWidth - 8);
    const below = at.bottom + note.offsetHeight + 12 < innerHeight;
    let top = below ? at.bottom + 6 : Math.max(at.top - note.offsetHeight - 6, 4);
    if (aside) [left, top] = [margin, Math.min(at.top, innerHeight - note.offsetHeight - 8)];
    note.style.left = `${left + scrollX}px`;
    note.style.top = `${top + scrollY}px`;
  }
  function hide() {
    clearTimeout(timer);
    shown?.removeAttribute("aria-describedby");
    shown = null;
    note.hidden = true;
  }

  /* The first use of each symbol on a page can be reached by the keyboard. */
  async function reachable() {
    const seen = new Set();
    const glossary = await toldOf();
    for (const formula of document.querySelectorAll(FORMULAS)) {
      const fresh = symbols(formula, glossary).filter((one) => !seen.has(one));
      if (!fresh.length) continue;
      formula.tabIndex = 0;
      fresh.forEach((one) => seen.add(one));
    }
  }

  const FORMULAS = "main p math, main li math, main td math";
  const PLACES = `main a.term, ${FORMULAS}`;
  const placeOf = (event) => (event.target.closest ? event.target.closest(PLACES) : null);
  addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch") return;
    const place = placeOf(event);
    clearTimeout(timer);
    if (place && place !== shown) timer = setTimeout(() => show(place), OPEN);
    else if (!place && shown && !event.target.closest("#note")) timer = setTimeout(hide, 2 * OPEN);
  });
  addEventListener("focusin", (event) => {
    if (placeOf(event) && event.target.matches(":focus-visible")) show(placeOf(event));
    else if (shown && !event.target.closest?.("#note")) hide();
  });
  /* A tap explains a word; the note has the link. A mouse's click follows the link. */
  let touched = false;
  addEventListener("pointerdown", (event) => (touched = event.pointerType === "touch"));
  addEventListener("click", (event) => {
    const place = placeOf(event);
    if (place && touched && place !== shown) {
      event.preventDefault();
      show(place);
    } else if (!place && !event.target.closest?.("#note")) hide();
  });
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
  if (chapters.includes(here)) reachable();
})();
