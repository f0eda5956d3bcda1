/* A JupyterLab extension, written by hand: explorers move before a cell has run, and a
 * screen reader is told what a picture shows.
 *
 * An explorer's output names a table beside the notebook, which player.js plays. Once a
 * kernel holds the explorer, its widget is shown in place of the player. */
"use strict";

(() => {
const EXPLORER = "application/vnd.refimpl.explorer+json";
const PICTURE = "image/png";
const WIDGET = "application/vnd.jupyter.widget-view+json";
const TABLES = "../figures/explorers";
const beside = (name) => new URL(name, document.currentScript.src).href;

const style = { rel: "stylesheet", href: beside("player.css") };
const script = Object.assign(document.createElement("script"), { src: beside("player.js") });
const loaded = new Promise((done) => (script.onload = done));
document.head.append(Object.assign(document.createElement("link"), style), script);

/* The table that an output names; an error if the picture is another one, of a reader's
   own gate or data. */
async function table({ data, metadata }, resolver) {
  const { table } = data[EXPLORER];
  if (!/^\w+$/.test(table)) throw new Error("no table has such a name");
  const path = await resolver.resolveUrl(`${TABLES}/${table}.json`);
  const answer = await fetch(await resolver.getDownloadUrl(path));
  if (!answer.ok) throw new Error(`no figures/explorers/${table}.json`);
  const bundle = await answer.json();
  if (bundle.still !== metadata[EXPLORER]?.still) throw new Error("it is not the stored one");
  return bundle;
}

/* The still picture, and in its place the player. */
let number = 0;
async function play(figure, model, resolver) {
  const { alt, width } = model.metadata["image/png"] ?? {};
  const src = `data:image/png;base64,${model.data["image/png"]}`;
  figure.append(Object.assign(new Image(), { src, alt, width }));
  await loaded;
  await explorer(`lab-${++number}`, table(model, resolver), figure);
  for (const one of figure.querySelectorAll("input, select, button"))
    one.dataset.lmSuppressShortcuts = true; // arrows move a slider, and not the notebook
}

/* ipywidgets tells a screen reader neither a slider's name nor the value beside it, and
   nothing of the picture. Of its stored text all stays true but what it found. */
function name(live, said = "") {
  for (const image of live.querySelectorAll("img"))
    image.alt ||= said.replace(/^.*?(?=Panels: )/s, "");
  for (const handle of live.querySelectorAll(".noUi-handle")) {
    const row = handle.closest(".widget-inline-hbox");
    const [label, value] = [".widget-label", ".widget-readout"].map(
      (one) => row?.querySelector(one)?.textContent.trim());
    if (label) handle.ariaLabel = label;
    if (value) handle.ariaValueText = value;
  }
}

const renderer = ({ Panel, Widget }, panel, resolver) => {
  const one = new Panel();
  one.node.style.containerType = "inline-size"; // for player.css
  one.renderModel = async (model) => {
    [...one.widgets].forEach((old) => old.dispose());
    const node = document.createElement("figure");
    node.className = "explorer lab";
    const still = new Widget({ node });
    one.addWidget(still);
    play(node, model, resolver);
    if (!model.trusted || !(WIDGET in model.data)) return;
    await panel.sessionContext.ready;
    await new Promise(setTimeout); // ipywidgets waits for it as well, to add its renderer
    const live = panel.content.rendermime.createRenderer(WIDGET);
    const shown = () => {
      const there = live.node.childElementCount > 0; // else it says that it was not found
      live.setHidden(!there);
      still.setHidden(there);
    };
    new MutationObserver(shown).observe(live.node, { childList: true });
    const every = { childList: true, characterData: true, subtree: true };
    const said = model.metadata[PICTURE]?.alt;
    new MutationObserver(() => name(live.node, said)).observe(live.node, every);
    one.addWidget(live);
    shown();
    live.renderModel(model);
    panel.sessionContext.statusChanged.connect((_, status) => {
      if (status !== "restarting" || live.isDisposed) return;
      still.show(); // nobody would answer the widget
      live.dispose();
    });
  };
  return one;
};

/* JupyterLab's own renderer of pictures, and the text that it leaves out. */
const described = (one) => {
  const render = one.renderModel.bind(one);
  one.renderModel = async (model) => {
    await render(model);
    one.node.querySelector("img").alt = model.metadata[PICTURE]?.alt ?? "";
  };
  return one;
};

const plugin = ({ INotebookTracker }, lumino) => ({
  id: "refimpl-explorers:plugin",
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_, tracker) => {
    const add = (panel) => {
      const { rendermime } = panel.content;
      rendermime.addFactory({
        safe: true, // what runs is in this folder, and a drawing has to pass player.js
        mimeTypes: [EXPLORER],
        createRenderer: ({ resolver }) => renderer(lumino, panel, resolver),
      }, -20); // before the widget and the picture
      const picture = rendermime.getFactory(PICTURE);
      rendermime.addFactory({
        ...picture,
        mimeTypes: [PICTURE],
        createRenderer: (options) => described(picture.createRenderer(options)),
      }, 90); // as JupyterLab ranks it
    };
    tracker.forEach(add);
    tracker.widgetAdded.connect((_, panel) => add(panel));
  },
});

let scope;
const shared = async (name) => (await Object.values(scope[name])[0].get())();
window._JUPYTERLAB ??= {};
window._JUPYTERLAB["refimpl-explorers"] = {
  init: (given) => void (scope = given),
  get: async () => {
    const every = ["@jupyterlab/notebook", "@lumino/widgets"].map(shared);
    const made = plugin(...(await Promise.all(every)));
    return () => ({ __esModule: true, default: made });
  },
};
})();
