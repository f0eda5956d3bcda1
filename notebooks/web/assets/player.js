/* Explorers that move without a kernel.
 *
 * A page has <figure class="explorer" data-explorer="ID"> with a still in it, and a
 * script that calls explorer("ID", bundle). What a bundle holds is written down in
 * notebooks/web/tables.py. A bundle with a `model` is computed in the page by
 * explorer.models[bundle.model.name].
 */
"use strict";

(() => {
const STEP = 1 / 20; // of a pixel
const GAP = -32768; // the line is interrupted
const SANS = '"DejaVu Sans", Verdana, "Bitstream Vera Sans", sans-serif';
const MONO = '"DejaVu Sans Mono", Menlo, Consolas, monospace';
const SAID_AFTER = 400; // ms without a movement
const NARROW = matchMedia("(max-width: 600px)");
const LEAST = 0.6; // of a panel: its letters of 10 points are then 9 pixels high
const WHOLE = 0.655; // and those of 9 points in a picture that is not cut
const TALLEST = 0.66; // of the screen: the rest is for the controls
const APART = 6;
const LONG = 18; // letters of a choice that half a phone cannot show
const MOVE = 1, LINE = 2, QUADRATIC = 3, CUBIC = 4, CLOSE = 79;

/* Decoding */

async function unpacked(base64) {
  const packed = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(plain).arrayBuffer());
  const end = 4 + new DataView(bytes.buffer).getUint32(0, true);
  const words = JSON.parse(new TextDecoder().decode(bytes.subarray(4, end)));
  const count = (bytes.length - end) / 2;
  const numbers = new Int16Array(count);
  for (let i = 0; i < count; i++) numbers[i] = bytes[end + i] | (bytes[end + count + i] << 8);
  return { words, numbers };
}

function segment(numbers, [at, count, mode, width]) {
  const own = numbers.slice(at, at + count);
  if (mode & 1) for (let i = 1; i < count; i++) own[i] += own[i - 1];
  if (mode & 2) for (let i = width; i < count; i++) own[i] += own[i - width];
  return own;
}

/* A channel: which of its states belongs to the controls' stops, and the states. */
function channel(held, counts, { words, numbers }) {
  const tables = held.tables.map(([sliders, place]) => ({
    sliders,
    numbers: place && segment(numbers, place),
  }));
  const index = (controls, stops) =>
    controls.reduce((place, i) => place * counts[i] + stops[i], 0);
  const find = (stops) => {
    const table = tables[index(held.menus, stops)];
    return table.numbers ? table.numbers[index(table.sliders, stops)] : 0;
  };
  if (held.words) {
    const states = [...segment(numbers, held.words)].map((i) => words[i]);
    return (stops) => states[find(stops)];
  }
  const every = segment(numbers, held.numbers);
  const pixels = Float32Array.from(every, (n) => (n === GAP ? NaN : n * STEP));
  if (typeof held.length === "number") {
    return (stops) => {
      const at = find(stops) * held.length;
      return pixels.subarray(at, at + held.length);
    };
  }
  const ends = [0];
  for (const n of segment(numbers, held.length)) ends.push(ends[ends.length - 1] + n);
  return (stops) => {
    const i = find(stops);
    return pixels.subarray(ends[i], ends[i + 1]);
  };
}

const NOTHING = { x: new Float32Array(0), y: new Float32Array(0), look: [], text: [] };

/* Functions from the controls' stops to what each artist draws. */
function artists(bundle, data) {
  const counts = bundle.controls.map((c) => c.stops.length);
  return bundle.artists.map((held) => {
    const ways = {};
    for (const name of Object.keys(NOTHING)) {
      ways[name] = held[name] ? channel(held[name], counts, data) : () => NOTHING[name];
    }
    return (stops, drawn) => {
      for (const name in ways) drawn[name] = ways[name](stops);
    };
  });
}

/* Drawing */

function trace(ctx, codes, x, y, at) {
  for (const [code, count] of codes) {
    for (let i = 0; i < count; i++, at++) {
      if (code === MOVE) ctx.moveTo(x[at], y[at]);
      else if (code === LINE) ctx.lineTo(x[at], y[at]);
      else if (code === CLOSE) ctx.closePath();
      else if (code === QUADRATIC) {
        ctx.quadraticCurveTo(x[at], y[at], x[at + 1], y[at + 1]);
        i += 1;
        at += 1;
      } else if (code === CUBIC) {
        ctx.bezierCurveTo(x[at], y[at], x[at + 1], y[at + 1], x[at + 2], y[at + 2]);
        i += 2;
        at += 2;
      }
    }
  }
}

function polyline(ctx, x, y, at, end) {
  let open = false;
  for (; at < end; at++) {
    if (Number.isNaN(x[at] + y[at])) open = false;
    else if (open) ctx.lineTo(x[at], y[at]);
    else {
      ctx.moveTo(x[at], y[at]);
      open = true;
    }
  }
}

/* Fill and stroke of what was traced, or of a path that is kept. */
function paint(ctx, look, path) {
  if (look.fill) {
    ctx.fillStyle = look.fill;
    path ? ctx.fill(path) : ctx.fill();
  }
  if (look.stroke) {
    ctx.strokeStyle = look.stroke;
    ctx.lineWidth = look.width;
    ctx.lineCap = look.cap;
    ctx.lineJoin = look.join;
    ctx.setLineDash(look.dash || []);
    ctx.lineDashOffset = look.from || 0;
    path ? ctx.stroke(path) : ctx.stroke();
  }
}

/* One marker at every place. */
const outlines = new WeakMap();

function markers(ctx, look, x, y, at) {
  let outline = outlines.get(look);
  if (!outline) {
    outline = new Path2D();
    const points = look.mark.at;
    trace(outline, look.mark.codes, points.map((p) => p[0]), points.map((p) => p[1]), 0);
    outlines.set(look, outline);
  }
  for (let i = at; i < at + look.n; i++) {
    if (Number.isNaN(x[i] + y[i])) continue;
    ctx.save();
    ctx.translate(x[i], y[i]);
    paint(ctx, look, outline);
    ctx.restore();
  }
}

/* No wider than matplotlib's: another font must not run into its neighbours. */
function letters(ctx, look, [text, width], x, y) {
  ctx.save();
  ctx.translate(x, y);
  if (look.angle) ctx.rotate((-look.angle * Math.PI) / 180);
  ctx.font = `${look.weight || "normal"} ${look.size}px ${look.mono ? MONO : SANS}`;
  ctx.textAlign = look.align;
  ctx.fillStyle = look.fill;
  ctx.fillText(text, 0, 0, width + 1);
  ctx.restore();
}

/* The title in words: they are given, or those in bold of the artist with this number. */
function told(title, drawn) {
  if (typeof title === "string") return title;
  const { look, text } = drawn[title];
  const bold = look.filter((one) => one.size).map((one) => one.weight === "bold");
  return text.filter((_, i) => bold[i]).map(([words]) => words).join(" ");
}

function artist(ctx, { x, y, look: looks, text, paint: own }) {
  if (own) return own(ctx);
  let at = 0;
  let said = 0;
  for (const look of looks) {
    ctx.save();
    if (look.clip) {
      ctx.beginPath();
      ctx.rect(...look.clip);
      ctx.clip();
    }
    if (look.size) letters(ctx, look, text[said++], x[at], y[at]);
    else if (look.mark) markers(ctx, look, x, y, at);
    else {
      ctx.beginPath();
      if (look.codes) trace(ctx, look.codes, x, y, at);
      else polyline(ctx, x, y, at, at + look.n);
      paint(ctx, look);
    }
    ctx.restore();
    at += look.n;
  }
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

/* The page */

function element(name, settings = {}, children = []) {
  const made = Object.assign(document.createElement(name), settings);
  made.append(...children);
  return made;
}

/* A control with its label and its value in letters; `follow(stop)` shows a stop. */
function control(id, about, moved) {
  const name = `${id}-${about.name}`;
  const label = element("label", { htmlFor: name, textContent: about.label });
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

function loaded(address) {
  return new Promise((done, failed) => {
    const script = element("script", { src: address, onload: done });
    script.onerror = () => failed(new Error(`${address} is not there`));
    document.head.append(script);
  });
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

const FOLDER = document.currentScript.src.replace(/[^/]*$/, "");

async function play(figure, id, bundle) {
  const { controls } = bundle;
  let shape = arranged(bundle, 0);
  const data = await unpacked(bundle.data);
  const ways = artists(bundle, data);
  let model = null;
  if (bundle.model) {
    await loaded(`${FOLDER}${bundle.model.name}.js`);
    const floats = (place) => new Float32Array(segment(data.numbers, place).buffer);
    model = explorer.models[bundle.model.name](bundle, floats);
  }
  const background = new Image();
  background.src = bundle.background;
  await background.decode();

  const stops = controls.map((c) => c.start);
  const drawn = ways.map(() => ({ ...NOTHING }));
  let computed = null;
  const compute = () => {
    ways.forEach((way, i) => way(stops, drawn[i]));
    if (model) computed = model(stops, drawn);
  };

  const { width, height } = bundle;
  const canvas = element("canvas", { width, height });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", bundle.alt);
  const ctx = canvas.getContext("2d");
  const strip = element("p", { className: "explorer-strip" });
  const stakes = bundle.artists.findIndex((one) => one.kind === "Strip");
  const title = element("p", { className: "explorer-title" });
  const draw = () => {
    compute();
    const unparted = (text) => text.replaceAll(" %", "\u00a0%");
    if (stakes >= 0) strip.textContent = unparted(drawn[stakes].text[0][0]);
    title.textContent = unparted(told(bundle.phone.title, drawn));
    const scale = canvas.width / shape.width;
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.fillStyle = "#fff";
    ctx.fillRect(0, 0, shape.width, shape.height);
    for (const { from: [left, top, right, bottom], x, y } of shape.places) {
      ctx.save();
      ctx.beginPath();
      ctx.rect(x, y, right - left, bottom - top);
      ctx.clip();
      ctx.translate(x - left, y - top);
      ctx.drawImage(background, 0, 0, width, height);
      for (const one of drawn) artist(ctx, one);
      ctx.restore();
    }
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
  const texts = () => drawn.flatMap((one) => one.text.map(([text]) => text));
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
  const parts = [legend, ...presets, ...rows.map((row) => row.row)];
  if (bundle.note) parts.push(element("p", { textContent: bundle.note }));
  const fields = element("fieldset", {}, parts);

  draw();
  before = [...named(), ...texts()];
  follow();
  const picture = element("div", { className: "explorer-picture" }, [canvas]);
  const view = element("div", { className: "explorer-view" }, [title, picture]);
  const more = () => picture.toggleAttribute(
    "data-more", picture.scrollLeft + picture.clientWidth < picture.scrollWidth - 2);
  picture.addEventListener("scroll", more);
  figure.querySelector("img").hidden = true;
  figure.prepend(question.row, view, strip, question.said, fields, live);
  const stays = () => {
    const seen = innerHeight - document.querySelector("header").offsetHeight;
    const asked = question.row.offsetHeight ?? 0;
    const bottom = fields.getBoundingClientRect().bottom;
    const high = bottom - figure.getBoundingClientRect().top - asked;
    view.classList.toggle("stays", high > seen);
  };
  new ResizeObserver(stays).observe(fields.parentElement);
  new ResizeObserver(() => {
    const room = view.clientWidth;
    if (!room) return;
    shape = arranged(bundle, room);
    picture.style.maxWidth = `${shape.width}px`;
    canvas.style.width = shape.scale ? `${shape.width * shape.scale}px` : "";
    more();
    const dense = Math.min(2, window.devicePixelRatio || 1);
    const pixels = Math.round(canvas.clientWidth * dense);
    if (pixels === canvas.width) return;
    canvas.width = pixels;
    canvas.height = Math.round((pixels * shape.height) / shape.width);
    draw();
  }).observe(view);

  const values = () =>
    Object.fromEntries(controls.map((c, i) => [c.name, c.stops[stops[i]]]));
  const state = () => {
    compute();
    const plain = ({ x, y, text }) => ({ x: [...x], y: [...y], text: text.map((t) => t[0]) });
    return { artists: drawn.map(plain), ...computed };
  };
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
function explorer(id, bundle) {
  const figure = document.querySelector(`figure[data-explorer="${CSS.escape(id)}"]`);
  if (!figure) return;
  play(figure, id, bundle).catch((error) => {
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

explorer.models = {};
window.explorers = {};
window.explorer = explorer;
})();
