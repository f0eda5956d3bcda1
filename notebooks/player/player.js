/* Explorers that move without a kernel, on the website and in JupyterLab.
 *
 * A page has <figure class="explorer" data-explorer="ID"> with a still in it, and a
 * script that calls explorer("ID", bundle); lab.js hands over the figure as well. What a
 * bundle holds is written down in notebooks/web/tables.py: drawings in SVG, and which of
 * them belongs to which stops.
 */
"use strict";

(() => {
const VERSION = 2; // of the bundles
const SAID_AFTER = 400; // ms without a movement
const NARROW = matchMedia("(max-width: 600px)");
const LEAST = 0.6; // of a panel: its letters of 10 points are then 9 pixels high
const WHOLE = 0.655; // and those of 9 points in a picture that is not cut
const TALLEST = 0.66; // of the screen: the rest is for the controls
const APART = 6;
const CONTROL = 110; // pixels below a picture, in which a slider can be moved
const LONG = 18; // letters of a choice that half a phone cannot show

async function unpacked(base64) {
  const packed = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(plain).json();
}

/* What is drawn, or said, at these stops. */
function at({ over, at, states }, stops, counts) {
  const place = over.reduce((place, i) => place * counts[i] + stops[i], 0);
  return states[at.length ? at[place] : 0];
}

/* Which parts of the picture stand where. Where a screen is narrow its title is told
   above it, and its pieces stand in rows; what is too large for that goes on to the right. */
function arranged({ width, height, phone }, room) {
  const whole = (top) => [{ from: [0, top, width, height], x: 0, y: 0 }];
  if (!NARROW.matches) return { width, height, places: whole(0) };
  let [places, x, y, high, wide] = [[], 0, 0, 0, 0];
  for (const [left, top, right, bottom, ...strip] of phone.pieces) {
    const full = x + right - left > room / LEAST || bottom - top > 2 * high; // or a legend
    if (x && full) [x, y, high] = [0, y + high + APART, 0];
    const cuts = [...(x || !strip.length ? [] : [strip]), [left, right, bottom]];
    for (const [from, to, end] of cuts) {
      places.push({ from: [from, top, to, end], x, y });
      x += to - from;
    }
    wide = Math.max(wide, x);
    x += APART;
    high = Math.max(high, bottom - top);
  }
  const tall = y + high;
  const scale = Math.min(room / wide, (TALLEST * innerHeight) / tall, 1);
  if (scale >= LEAST) return { width: wide, height: tall, places, scale };
  return { width, height: height - phone.top, places: whole(phone.top), scale: WHOLE };
}

/* What a drawing may consist of. A table comes from wherever the notebook comes from, so
   nothing else of it reaches the page: nothing that runs, and nothing that loads. */
const TAGS = new Set("g defs clipPath path rect text tspan use".split(" "));
const FREE = "d x y width height transform textLength lengthAdjust data-said".split(" ");
const HARMLESS = new Map([...FREE.map((name) => [name, /^/]), ["style", /^[^(\\]*$/]]);
const NAMING = new Map([
  ["id", /^()(\w+)$/], ["clip-path", /^(url\(#)(\w+\))$/], ["xlink:href", /^(#)(\w+)$/],
]);

/* A drawing as nodes. Its names begin with `id`, so that it means no other drawing's. */
function parsed(drawing, id) {
  const page = new DOMParser().parseFromString(`<svg>${drawing}</svg>`, "text/html");
  const root = page.querySelector("svg");
  for (const one of root.querySelectorAll("*")) {
    if (!TAGS.has(one.tagName)) one.remove();
    for (const attribute of [...one.attributes]) {
      const { name, value } = attribute;
      const [, before, rest] = NAMING.get(name)?.exec(value) ?? [];
      if (rest) attribute.value = `${before}${id}-${rest}`;
      else if (!HARMLESS.get(name)?.test(value)) one.removeAttribute(name);
    }
  }
  return [...root.childNodes];
}

/* The page */

function element(name, settings = {}, children = []) {
  const made = Object.assign(document.createElement(name), settings);
  made.append(...children);
  return made;
}

function svg(name, settings = {}, children = []) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(settings)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/* A control with its label and its value in letters; `follow(stop)` shows a stop. */
function control(id, about, moved) {
  const name = `${id}-${about.name}`;
  const words = about.label.split(/_(old|high|low|pos|neg|min|max|cache)\b/);
  const label = element("label", { htmlFor: name }, words.map((word, i) =>
    i % 2 ? element("sub", { textContent: word }) : word)); // π_old with an index
  if (about.kind === "menu") {
    const options = about.labels.map((text, i) => new Option(text, i));
    const menu = element("select", { id: name }, options);
    menu.addEventListener("change", () => moved(Number(menu.value)));
    const follow = (stop) => (menu.value = stop);
    const long = Math.max(...about.labels.map((text) => text.length)) > LONG;
    return { row: element("div", { className: long ? "long" : "" }, [label, menu]), follow };
  }
  const range = element("input", { id: name, type: "range", min: 0, step: 1 });
  range.max = about.stops.length - 1;
  const output = element("output", { htmlFor: name });
  range.addEventListener("input", () => moved(Number(range.value)));
  const follow = (stop) => {
    range.value = stop;
    range.setAttribute("aria-valuetext", about.labels[stop]);
    output.textContent = about.labels[stop];
  };
  const head = element("div", { className: "explorer-label" }, [label, output]);
  return { row: element("div", {}, [head, range]), follow };
}

/* A question before the first drag; after it a prediction is judged. */
function prediction(id, asked) {
  if (!asked) return { row: "", said: "", drag: () => {} };
  const said = element("p", { className: "explorer-answer" });
  said.setAttribute("aria-live", "polite");
  const choices = Object.keys(asked.said).map((option) => {
    const input = element("input", { type: "radio", name: `${id}-prediction`, value: option });
    return element("label", {}, [input, ` ${option}`]);
  });
  const question = element("p", {}, [element("b", { textContent: "Predict, then drag. " })]);
  question.append(asked.question);
  const row = element("div", { className: "explorer-prediction" }, [question, ...choices]);
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", "A prediction");
  let dragged = false;
  const answer = () => {
    const chosen = row.querySelector("input:checked");
    if (!chosen) return; // the question stays open
    said.textContent = dragged ? asked.said[chosen.value] : asked.now;
    row.querySelectorAll("input").forEach((input) => (input.disabled = dragged));
  };
  row.addEventListener("change", answer);
  const drag = () => {
    dragged = true;
    answer();
  };
  return { row, said, drag };
}

/* What changes above a row does not move it away from under a finger. */
function held(row, change) {
  const before = row.getBoundingClientRect().top;
  change();
  scrollBy({ top: row.getBoundingClientRect().top - before, behavior: "instant" });
}

async function play(figure, id, given) {
  const bundle = await given;
  if (bundle.version !== VERSION) {
    throw new Error(`its table needs player ${bundle.version}, this is ${VERSION}`);
  }
  const { controls, width, height } = bundle;
  const counts = controls.map((c) => c.stops.length);
  const stops = controls.map((c) => c.start);
  const kept = await unpacked(bundle.data);
  let shape = arranged(bundle, 0);

  /* The drawing is made once, and shown in one place or piece by piece. */
  const whole = svg("g", { id: `${id}-drawing`, transform: `scale(${bundle.scale})` });
  whole.append(...parsed(kept.background, id));
  const layers = kept.artists.map(() => whole.appendChild(svg("g")));
  const picture = svg("svg", { role: "img", "aria-label": bundle.alt });
  const arrange = () => {
    picture.setAttribute("viewBox", `0 0 ${shape.width} ${shape.height}`);
    const views = shape.places.map(({ from: [left, top, right, bottom], x, y }) => {
      const [wide, high] = [right - left, bottom - top];
      const box = { x, y, width: wide, height: high };
      const part = svg("use", { href: `#${whole.id}` });
      return svg("svg", { ...box, viewBox: `${left} ${top} ${wide} ${high}` }, [part]);
    });
    const paper = svg("rect", { width: "100%", height: "100%", fill: "#fff" });
    picture.replaceChildren(svg("defs", {}, [whole]), paper, ...views);
  };
  const strip = element("p", { className: "explorer-strip" });
  const title = element("p", { className: "explorer-title" });
  const drawn = kept.artists.map(() => null);
  const draw = () => {
    const unparted = (text) => text.replaceAll(" %", "\u00a0%");
    strip.textContent = unparted(at(kept.strip, stops, counts));
    title.textContent = unparted(at(kept.title, stops, counts));
    kept.artists.forEach((one, i) => {
      const now = at(one, stops, counts);
      if (drawn[i] !== now) layers[i].replaceChildren(...parsed(drawn[i] = now, id));
    });
  };
  let waiting = false;
  const redraw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      held(fields, draw);
    });
  };

  const live = element("p", { className: "explorer-said" });
  live.setAttribute("aria-live", "polite");
  const texts = () => [strip.textContent, ...layers.flatMap((layer) =>
    [...layer.querySelectorAll("[data-said]")].map((one) => one.dataset.said))];
  const named = () => controls.map((c, i) => `${c.label}: ${c.labels[stops[i]]}`);
  let before = [];
  let timer = 0;
  const say = () => {
    const now = [...named(), ...texts()].filter((text) => text.trim());
    live.textContent = now.filter((text) => !before.includes(text)).join(". ");
    before = now;
  };

  const follow = () => rows.forEach((row, i) => row.follow(stops[i]));
  const moved = () => {
    follow();
    redraw();
    clearTimeout(timer);
    timer = setTimeout(say, SAID_AFTER);
  };
  const set = (chosen) => {
    controls.forEach((c, i) => (stops[i] = chosen[c.name] ?? stops[i]));
    moved();
    held(fields, question.drag);
  };
  const question = prediction(id, bundle.prediction);
  const rows = controls.map((c) => control(id, c, (stop) => set({ [c.name]: stop })));
  const buttons = bundle.presets.map((preset) => {
    const button = element("button", { type: "button", textContent: preset.label });
    button.addEventListener("click", () => set(preset.set));
    return button;
  });
  const legend = element("legend", { textContent: "Controls of the picture" });
  const chips = element("div", { className: "explorer-presets" }, buttons);
  const presets = buttons.length ? [chips] : [];
  const above = NARROW.matches ? [] : presets; // a phone shows them below its picture
  const parts = [legend, ...above, ...rows.map((row) => row.row)];
  const fields = element("fieldset", {}, parts);

  arrange();
  draw();
  before = [...named(), ...texts()];
  follow();
  const frame = element("div", { className: "explorer-picture" }, [picture]);
  const below = NARROW.matches ? presets : [];
  const view = element("div", { className: "explorer-view" }, [title, frame, ...below]);
  const more = () => frame.toggleAttribute(
    "data-more", frame.scrollLeft + frame.clientWidth < frame.scrollWidth - 2);
  frame.addEventListener("scroll", more);
  figure.querySelector("img").hidden = true;
  figure.prepend(question.row, view, strip, question.said, fields, live);
  const stays = () => {
    const header = document.querySelector("body > header")?.offsetHeight ?? 0;
    const asked = question.row.offsetHeight ?? 0;
    const bottom = fields.getBoundingClientRect().bottom;
    const high = bottom - figure.getBoundingClientRect().top - asked;
    const room = innerHeight - header; // a picture as high as this would cover all
    view.classList.toggle("stays", high > room && view.offsetHeight < room - CONTROL);
  };
  new ResizeObserver(stays).observe(fields.parentElement);
  new ResizeObserver(() => {
    const room = view.clientWidth;
    if (!room) return;
    shape = arranged(bundle, room);
    frame.style.maxWidth = `${shape.width}px`;
    picture.style.width = shape.scale ? `${shape.width * shape.scale}px` : "";
    arrange();
    more();
  }).observe(view);

  const values = () =>
    Object.fromEntries(controls.map((c, i) => [c.name, c.stops[stops[i]]]));
  const state = () => ({
    artists: layers.map((one) => one.innerHTML.replaceAll(`${id}-`, "")),
    strip: strip.textContent,
    title: title.textContent,
  });
  /* By name of the control, the label of its stop. */
  const put = (wanted) => {
    const chosen = {};
    for (const { name, labels } of controls) {
      if (!(name in wanted)) continue;
      chosen[name] = labels.indexOf(wanted[name]);
      if (chosen[name] < 0) throw new Error(`${id}: ${name} has no stop ${wanted[name]}`);
    }
    set(chosen);
  };
  window.explorers[id] = { set, put, values, state, draw };
}

/* The still stays where this browser cannot show more, and a sentence says so. */
function explorer(id, bundle, figure) {
  figure ??= document.querySelector(`figure[data-explorer="${CSS.escape(id)}"]`);
  return figure && play(figure, id, bundle).catch((error) => {
    console.error(id, error);
    const text = `This picture stands still here (${error.message}).`;
    figure.append(element("p", { className: "explorer-note", textContent: text }));
  });
}

/* <a data-set="delta=0.05; gate=one-sided"> in the text sets the next explorer. */
function linked(link) {
  const after = (one) =>
    link.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_FOLLOWING;
  const every = [...document.querySelectorAll("figure.explorer")];
  const figure = every.find(after) || every[every.length - 1];
  const play = figure && window.explorers[figure.dataset.explorer];
  if (!play) return;
  play.put(Object.fromEntries(link.dataset.set.split(";").map((one) => one.trim().split("="))));
  figure.scrollIntoView({ block: "nearest" });
}

for (const link of document.querySelectorAll("a[data-set]")) {
  link.setAttribute("role", "button");
  link.tabIndex = 0;
  link.addEventListener("click", () => linked(link));
  link.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    linked(link);
  });
}

window.explorers = {};
window.explorer = explorer;
})();
